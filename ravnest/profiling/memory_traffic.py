"""What moving a byte in memory takes, in FLOPs: the figure that lets one speed tell the times of unequal units.

Matrix products, convolutions and attention take as long as their FLOPs say. Norms, softmax, embeddings, activations and
depthwise convolutions mostly wait for memory. With both, a unit takes

    t = (FLOPs + β · bytes moved) / F        F the node's FLOP/s, β of the whole fleet

In: the kinds of a model's units, and on each node the seconds that one unit of each kind takes. Out: β, and F. F is
such that the whole model takes what it was measured to take, whatever β is; β is the one with which the times of the
single kinds come nearest. Pure arithmetic.
"""

from collections.abc import Sequence
from dataclasses import dataclass

TRIED = (0.0, *(10.0 ** (step / 50 - 2) for step in range(301)))
"""The values of β that are tried: 0, and from 0.01 to 10,000 in steps of 5 %."""


@dataclass(frozen=True)
class UnitKind:
    """Units of a model that are alike. The figures are one unit's, for forward and backward of one micro-batch."""

    count: int
    flops: float
    """With its share of an update."""
    moved_bytes: float


def flops_per_s(kinds: Sequence[UnitKind], kind_s: Sequence[float], flops_per_byte: float) -> float:
    """Return the speed with which the whole model takes what its kinds take. `kind_s`: the seconds of one unit each."""
    work = sum(kind.count * (kind.flops + flops_per_byte * kind.moved_bytes) for kind in kinds)
    return work / sum(kind.count * seconds for kind, seconds in zip(kinds, kind_s, strict=True))


def flops_per_byte(kinds: Sequence[UnitKind], nodes: Sequence[Sequence[float]]) -> float:
    """Return β, rounded to three digits. `nodes`: for each node the seconds of one unit of each kind."""
    best = min(TRIED, key=lambda each: sum(_wrong(kinds, kind_s, each) for kind_s in nodes))
    return float(f"{best:.3g}")


def _wrong(kinds: Sequence[UnitKind], kind_s: Sequence[float], traffic: float) -> float:
    """The part of the model's time that is told of the wrong units."""
    speed, whole_s = flops_per_s(kinds, kind_s, traffic), 0.0
    off_s = 0.0
    for kind, seconds in zip(kinds, kind_s, strict=True):
        off_s += kind.count * abs(seconds - (kind.flops + traffic * kind.moved_bytes) / speed)
        whole_s += kind.count * seconds
    return off_s / whole_s
