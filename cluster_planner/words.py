"""How a speed reads, in a plan's own texts and wherever a plan or a run is shown. Pure."""


def rate(samples_per_s: float) -> str:
    """Three figures, and all digits before the point: `12,346`, `99.6`, `0.123`."""
    return f"{samples_per_s:,.0f}" if samples_per_s >= 100 else f"{samples_per_s:.3g}"
