"""What a stage machine is told about its place and its bounds, a stage's name, and the error of an illegal event."""

from __future__ import annotations

from dataclasses import dataclass

from cluster_planner import SYNCHRONOUS, Schedule, held_micro_batches


@dataclass(frozen=True, slots=True)
class StageShape:
    """The place and the bounds of one stage of one cluster. The stage of a one-stage pipeline is both first and last.

    Raises ValueError where they are impossible.
    """

    stages: int
    index: int
    """The place in the pipeline; 0 is the first stage."""
    update_every: int
    """Micro-batches that make one update (U)."""
    max_staleness: int
    """The bound on staleness in updates (S); 0 is synchronous training."""
    window: int
    """How many micro-batches may be in flight to begin with (W). Only the first stage of an asynchronous pipeline looks
    at it."""
    max_lag: int
    """How many rounds may be contributed to and not yet merged."""
    clip: bool = False
    """Whether gradients are clipped by their global norm."""
    schedule: Schedule = "async"
    room: int = 0
    """The number of micro-batches for whose activations this stage has memory, where backwards may be split; 0 where
    they never are. A split backward keeps its activations until its weight gradients are computed, and as much again of
    gradients."""

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
        """The number of micro-batches that may be between forward and backward here in a synchronous schedule."""
        return held_micro_batches(self.schedule, self.stages, self.index, self.update_every)

    def ends_group(self, micro_batch: int) -> bool:
        """Say whether the micro-batch is the last one of an update."""
        return (micro_batch + 1) % self.update_every == 0


def stage_name(cluster: str, index: int) -> str:
    """Return the name that a stage has in messages, files and the transport: `c0.s1` is stage 1 of cluster c0."""
    return f"{cluster}.s{index}"


def stage_place(name: str) -> tuple[str, int]:
    """Return the cluster and the number of the stage of that name: what `stage_name` was made of."""
    cluster, _, index = name.rpartition(".s")
    return cluster, int(index)


def spare_name(stage: str) -> str:
    """The name of the warm spare of a stage. No cluster may have such a name."""
    return f"~{stage}"


class IllegalEventError(Exception):
    """An event cannot follow what has happened. It never leaves `StageMachine.handle`, which answers `Fail`."""


def require(condition: bool, otherwise: str) -> None:
    """Raises IllegalEventError(otherwise) unless `condition` holds."""
    if not condition:
        raise IllegalEventError(otherwise)
