"""How much of a model, and of its batches, is held at once by whoever runs it span after span. Pure."""

from collections.abc import Sequence

from cluster_planner import Unit

Span = tuple[int, int]


def spans_within(units: Sequence[Unit], stages: Sequence[Span], most_bytes: int) -> list[Span]:
    """The stages' own spans, those whose weights take more than `most_bytes` cut further: greedily, between units.

    A single unit may be larger.
    """
    found: list[Span] = []
    for begin, end in stages:
        start, held = begin, 0
        for number in range(begin, end):
            size = units[number].parameter_bytes + units[number].borrowed_bytes
            if number > start and held + size > most_bytes:
                found.append((start, number))
                start, held = number, 0
            held += size
        found.append((start, end))
    return found


def batches_at_once(units: Sequence[Unit], spans: Sequence[Span], samples: int, batches: int, most_bytes: int) -> int:
    """How many of `batches`, of `samples` each, may wait between two spans so that their activations take at most
    `most_bytes`; 1 at the least."""
    widest = samples * max((units[end - 1].boundary_bytes for _, end in spans[:-1]), default=0)
    return min(batches, max(1, most_bytes // widest)) if widest else batches
