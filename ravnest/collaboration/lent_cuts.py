"""Where a volunteer's model is cut for the machines that it is lent. Pure.

In: the units of the model with their costs, and how fast the machines are and how much memory they have left, in their
order. Out: the span of units for each. The slowest stage is as fast as it can be. It is found by bisection: for a time
that no stage may exceed, machines take as many units as they can, one after the other.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from cluster_planner import Unit
from ravnest.errors import InvalidInput

WEIGHTS_HELD = 5
"""A stage holds its weights, one micro-batch's gradient, the sum of gradients, and what Adam keeps: five times them."""

HALVINGS = 60


@dataclass(frozen=True)
class LentPower:
    """What a machine says of itself."""

    name: str
    flops_per_s: float
    free_bytes: int


def spans_for(units: Sequence[Unit], machines: Sequence[LentPower], micro_batch: int) -> list[tuple[int, int]]:
    """[start, end) for each machine, at least one unit each. Raises InvalidInput where there is no such division."""
    if len(machines) > len(units):
        raise InvalidInput(
            f"the model has {len(units)} units, which cannot be divided among {len(machines)} machines", key="--stages"
        )
    slowest_s = max(_flops(units) / machine.flops_per_s for machine in machines) * micro_batch
    best = _divided(units, machines, micro_batch, math.inf)
    if best is None:
        needed = sum(_held_bytes(unit, micro_batch, 1) for unit in units)
        free = sum(machine.free_bytes for machine in machines)
        raise InvalidInput(
            f"the model takes some {needed / 1e9:.1f} GB to train, and the machines have {free / 1e9:.1f} GB free"
            " together: no stage of it fits where it would have to be",
            key="--stages",
            hint="more machines, or a smaller micro_batch",
        )
    low_s, high_s = 0.0, 2 * slowest_s  # twice: sums are rounded
    for _ in range(HALVINGS):
        middle_s = (low_s + high_s) / 2
        found = _divided(units, machines, micro_batch, middle_s)
        if found is None:
            low_s = middle_s
        else:
            best, high_s = found, middle_s
    return best


def _divided(
    units: Sequence[Unit], machines: Sequence[LentPower], micro_batch: int, most_s: float
) -> list[tuple[int, int]] | None:
    spans: list[tuple[int, int]] = []
    start = 0
    for place, machine in enumerate(machines):
        behind = len(machines) - place - 1
        end, seconds, held = start, 0.0, 0.0
        while end < len(units) - behind:
            seconds += _flops(units[end : end + 1]) * micro_batch / machine.flops_per_s
            held += _held_bytes(units[end], micro_batch, len(machines) - place)
            if seconds > most_s or held > machine.free_bytes:
                break
            end += 1
        if end == start:
            return None
        spans.append((start, end))
        start = end
    return spans if start == len(units) else None


def _flops(units: Sequence[Unit]) -> float:
    """Of one sample: a backward takes twice a forward."""
    return 3 * sum(unit.flops for unit in units)


def _held_bytes(unit: Unit, micro_batch: int, in_flight: int) -> float:
    weights = unit.parameter_bytes + unit.borrowed_bytes
    return WEIGHTS_HELD * weights + in_flight * micro_batch * unit.saved_bytes
