"""Timings that take turns, so that what changes on a machine meanwhile changes all of them alike."""

from collections.abc import Callable, Sequence


def interleaved(kinds: Sequence[str], measure: Callable[[str], float], repeats: int) -> dict[str, list[float]]:
    """`repeats` figures of each kind, taken in turns: first a, then b, then a again."""
    taken: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(repeats):
        for kind in kinds:
            taken[kind].append(measure(kind))
    return taken
