"""How figures and numbers of things are written, in a plan's own texts and wherever a plan or a run is shown. Pure."""


def format_rate(samples_per_s: float) -> str:
    """Write a speed, or what else has a unit, with three figures and all digits before the point: `12,346`, `0.123`."""
    return f"{samples_per_s:,.0f}" if samples_per_s >= 100 else f"{samples_per_s:.3g}"


def format_count(number: int, word: str) -> str:
    """Write a number of things: `1 cluster`, `2 clusters`."""
    return f"{number:,} {word}{'' if number == 1 else 's'}"
