"""How results are written, for people and for programs.

In: numbers in SI units. Out: short text for a terminal, such as losses, durations, sizes, and a loss beside its
baselines. `json_value` makes any result a value as JSON takes it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path


def loss_text(loss: float | None) -> str:
    """`2.013`; a dash where there is no loss yet."""
    return "–" if loss is None else f"{loss:.3f}"


def duration(seconds: float) -> str:
    """`850 ms`, `12.3 s`, `4 min 05 s`, `3 h 20 min`."""
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def clause(sentence: str) -> str:
    """A sentence as a part of a longer one: without its full stop."""
    return sentence.rstrip().removesuffix(".")


def harmless(text: str) -> str:
    """Text of others as a part of one line that does nothing to a terminal: control characters are question marks."""
    return "".join(one if one.isprintable() else " " if one.isspace() else "?" for one in text)


TWICE_FORWARD = "twice forward: the stage keeps no activations, and runs each forward again before its backward"
"""What is said of stages that recompute."""


MOST_LISTED, FIRST_LISTED = 6, 3
"""Of more names than MOST_LISTED only the first are written, FIRST_LISTED of them."""


def listed(names: Sequence[str]) -> str:
    """`a`, `a, b, c`, or `a, b, c and 39 more` where they are many."""
    if len(names) <= MOST_LISTED:
        return ", ".join(names)
    return f"{', '.join(names[:FIRST_LISTED])} and {len(names) - FIRST_LISTED} more"


def size(count: float) -> str:
    """Bytes in decimal units, as nodes.yaml counts them: `512 B`, `1.9 MB`, `16 GB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def beside_baselines(loss: float, baselines: Mapping[str, float]) -> str:
    """`held-out loss 2.01 · bigram model 2.32 (0.31 better)`."""
    parts = [f"held-out loss {loss:.2f}"]
    for name, baseline in baselines.items():
        gain = baseline - loss
        verdict = f"{abs(gain):.2f} {'better' if gain >= 0 else 'worse'}"
        parts.append(f"{name} {baseline:.2f} ({verdict})")
    return " · ".join(parts)


def json_value(value: object) -> object:
    """`value` as dicts with text keys, lists, text, numbers, booleans and None, which JSON can write.

    A path becomes text, and a number that is not finite becomes None.
    """
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value  # most values are one of these, and a page writes thousands each second
    if isinstance(value, Mapping):
        return {str(key): json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(item) for item in value]
    return str(value) if isinstance(value, Path) else value
