"""The schedules of a pipeline: in which order a stage runs the forwards and backwards of an update. Pure.

    async    no flush: backward before forward, up to W micro-batches in flight, staleness up to `max_staleness`
    1f1b     stages − 1 − s forwards, then one forward and one backward in turn; flushed at each update
    gpipe    all forwards of the update, then all its backwards; flushed at each update

1f1b and gpipe are synchronous (PipeDream-flush, Narayanan et al. 2021; GPipe, Huang et al. 2019). Both are one rule
with two limits: forward as long as the update has one left and fewer than `held` micro-batches are between forward and
backward, else backward. The order is the same whatever arrives first. `async` with `max_staleness` 0 is synchronous,
too, but greedy: it takes what is ready, backward first, and holds what its window admits.
"""

from typing import Literal, TypeAlias

Schedule: TypeAlias = Literal["async", "1f1b", "gpipe"]
SYNCHRONOUS: tuple[Schedule, ...] = ("1f1b", "gpipe")

SPLIT_KEEPS = 2
"""What a split backward keeps until its weight gradients are computed, in micro-batches' worth of saved activations:
its own, and gradients of about as many bytes."""

ActivationCheckpointing: TypeAlias = Literal["auto", "always", "never"]
"""When a stage forgets its activations and runs its forward again for the backward: where the plan finds its memory too
short otherwise, always, or never."""

Tied: TypeAlias = Literal["exact", "averaged"]
"""How a parameter is trained whose uses lie in several stages of a cluster: one of them owns it and applies the sum of
all gradients, or each has a copy of its own, and rounds average them."""

SplitBackward: TypeAlias = Literal["auto", "always", "never"]
"""When a stage computes and sends input gradients before weight gradients: where it pays, always, or never."""


def held(schedule: Schedule, stages: int, index: int, update_every: int) -> int:
    """Micro-batches that stage `index` of a synchronous schedule has run forward, at most, and not yet backward."""
    if schedule == "gpipe":
        return update_every
    return min(stages - index, update_every)
