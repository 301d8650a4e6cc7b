"""What a stage machine is told about its place and its bounds, and what it calls an event that cannot be."""

from __future__ import annotations

from dataclasses import dataclass

from cluster_planner.inputs.model_costs import SYNCHRONOUS, Schedule, held


@dataclass(frozen=True, slots=True)
class StageShape:
    """One stage of one cluster. A one-stage pipeline is both first and last. Raises ValueError when
    impossible."""

    stages: int
    index: int
    """0 is the first stage."""
    update_every: int
    """Micro-batches that make one update (U)."""
    max_staleness: int
    """Updates; 0 is synchronous training."""
    window: int
    """Micro-batches in flight at most, to begin with (W). Only the first stage looks at it, and only when
    asynchronous."""
    max_lag: int
    """Rounds contributed to but not yet merged, at most."""
    clip: bool = False
    """Whether gradients are clipped by their global norm."""
    schedule: Schedule = "async"
    room: int = 0
    """Micro-batches for whose activations this stage has memory, when backwards may be split. A split one keeps its
    own until its weight gradients are computed, and as much again of gradients. 0: backwards are never split."""

    def __post_init__(self) -> None:
        for name, least in (
            ("stages", 1),
            ("index", 0),
            ("update_every", 1),
            ("max_staleness", 0),
            ("window", 1),
            ("max_lag", 1),
            ("room", 0),
        ):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, not {getattr(self, name)}")
        if self.index >= self.stages:
            raise ValueError(f"index {self.index} is not a stage of {self.stages}")
        if self.is_synchronous and self.max_staleness:
            raise ValueError(f"schedule {self.schedule} has no staleness: max_staleness must be 0")
        if self.is_first and self.room:
            raise ValueError("the first stage sends no gradient, so its backward is never split")

    @property
    def is_first(self) -> bool:
        return self.index == 0

    @property
    def is_last(self) -> bool:
        return self.index == self.stages - 1

    @property
    def is_synchronous(self) -> bool:
        """Whether the order of forwards and backwards is fixed, with a flush at each update."""
        return self.schedule in SYNCHRONOUS

    @property
    def held(self) -> int:
        """Synchronous: micro-batches between forward and backward here, at most."""
        return held(self.schedule, self.stages, self.index, self.update_every)

    def ends_group(self, micro_batch: int) -> bool:
        return (micro_batch + 1) % self.update_every == 0


def stage_name(cluster: str, index: int) -> str:
    """The name of a stage everywhere, in messages, files and on the transport: `c0.s1` is stage 1 of cluster c0."""
    return f"{cluster}.s{index}"


class IllegalEventError(Exception):
    """An event that cannot follow what has happened. Never leaves `StageMachine.handle`, which answers
    `Fail`."""


def require(condition: bool, otherwise: str) -> None:
    if not condition:
        raise IllegalEventError(otherwise)
