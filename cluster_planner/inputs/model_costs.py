"""What a model costs unit by unit, what a run asks of it, and the schedules that a pipeline can follow.

These are the planner's inputs beside the fleet. They come from outside (the capture of a model, a job file) and are
checked here once, so that the formulas need not.

A schedule is the order in which a stage runs the forwards and backwards of an update:

    async    no flush: backward before forward, up to W micro-batches in flight, staleness up to `max_staleness`
    1f1b     stages − 1 − s forwards, then one forward and one backward in turn; flushed at each update
    gpipe    all forwards of the update, then all its backwards; flushed at each update

1f1b and gpipe are synchronous (PipeDream-flush, Narayanan et al. 2021; GPipe, Huang et al. 2019). Both follow one rule
with two limits: run a forward as long as the update has one left and fewer than `held_micro_batches` micro-batches are
between forward and backward, else a backward. The order does not depend on what arrives first. `async` with
`max_staleness` 0 is synchronous, too, but greedy: it takes what is ready, backward first, and holds what its window
admits.
"""

import math
from dataclasses import dataclass, fields, replace
from typing import Literal, TypeAlias

from cluster_planner.errors import InvalidInput

Schedule: TypeAlias = Literal["async", "1f1b", "gpipe"]
SYNCHRONOUS: tuple[Schedule, ...] = ("1f1b", "gpipe")

MOST_IN_FLIGHT = 8192
"""The largest number of micro-batches that an update and its staleness may admit at once. A plan's pipelines are walked
micro-batch by micro-batch (predict/schedule_walk.py), and with many more a plan would take hours."""

SPLIT_KEEPS = 2
"""A split backward keeps this many micro-batches' worth of saved activations until its weight gradients are computed:
its own activations, and gradients of about as many bytes.
"""

ActivationCheckpointing: TypeAlias = Literal["auto", "always", "never"]
"""When a stage forgets its activations and runs its forward again for the backward: where the plan finds its memory too
short otherwise, always, or never."""

Tied: TypeAlias = Literal["exact", "averaged"]
"""How a parameter is trained whose uses lie in several stages of a cluster: one of them owns it and applies the sum of
all gradients, or each has a copy of its own, and rounds average them."""

SplitBackward: TypeAlias = Literal["auto", "always", "never"]
"""When a stage computes and sends input gradients before weight gradients: where it pays, always, or never."""


def held_micro_batches(schedule: Schedule, stages: int, index: int, update_every: int) -> int:
    """Micro-batches that stage `index` of a synchronous schedule has run forward, at most, and not yet backward."""
    if schedule == "gpipe":
        return update_every
    return min(stages - index, update_every)


@dataclass(frozen=True, kw_only=True)
class Unit:
    """The smallest indivisible piece of the model, in execution order. All figures are for ONE sample."""

    name: str
    flops: float
    """FLOPs of the forward pass; the backward is taken to cost twice that."""
    parameter_bytes: int
    """Weights the unit holds (not per sample). Trained ones of a 16-bit type count as their float32 masters."""
    saved_bytes: int
    """Activations kept from forward to backward."""
    boundary_bytes: int
    """What is alive across the unit's end, so what a cut there sends forward, in the model's own precision."""
    boundary_gradient_bytes: int
    """The part of it that needs a gradient, so what a cut there sends back."""
    shared: tuple[str, ...] = ()
    """Ids of parameters that other units hold too."""
    tied_bytes: int = 0
    """Parameters used up to the unit's end and behind it, too (not per sample): once an update a cut there sends them
    forward, and as much of gradients back; or, with `tied: averaged`, nothing."""
    borrowed_bytes: int = 0
    """Tied parameters that the unit uses and that units before it hold (not per sample)."""
    boundary_narrow_bytes: int = 0
    """The part of `boundary_gradient_bytes` whose numbers have 16 bits."""
    narrow_bytes: int = 0
    """Trained weights of a 16-bit type, in that type: half of their part of `parameter_bytes`."""
    optimizer_bytes: int | None = None
    """What the job's optimizer keeps for the weights, to the byte; None: what the workload's ratio says."""
    moved_bytes: int = 0
    """What the operators of the forward read and write, each tensor whole; weights count once in a micro-batch, of
    which this is a sample's part."""

    def __post_init__(self) -> None:
        for name in (
            "flops",
            "parameter_bytes",
            "saved_bytes",
            "boundary_bytes",
            "boundary_gradient_bytes",
            "boundary_narrow_bytes",
            "tied_bytes",
            "borrowed_bytes",
            "narrow_bytes",
            "moved_bytes",
        ):
            _require(self.name, name, getattr(self, name), least=0)
        if self.optimizer_bytes is not None:
            _require(self.name, "optimizer_bytes", self.optimizer_bytes, least=0)


@dataclass(frozen=True)
class ModelCosts:
    """All units of a model. A run whose captured model has another `fingerprint` must be refused."""

    units: tuple[Unit, ...]
    fingerprint: str

    def __post_init__(self) -> None:
        if not self.units:
            raise InvalidInput("a model needs at least one unit", key="units")

    @property
    def parameter_bytes(self) -> int:
        return sum(unit.parameter_bytes for unit in self.units)

    def with_traffic(self, flops_per_byte: float) -> "ModelCosts":
        """Return the costs with what each unit moves in memory among its FLOPs: a byte takes as long as so many."""
        units = [replace(unit, flops=unit.flops + flops_per_byte * unit.moved_bytes) for unit in self.units]
        return replace(self, units=tuple(units))


PARAMETER_BYTES = 4
"""Bytes of one averaged number before it takes its form on the wire: averaging is in float32."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """The parts of a job that change its cost."""

    micro_batch: int
    """Samples of one micro-batch."""
    update_every: int
    """Micro-batches of one update."""
    max_staleness: int
    """Updates; 0 is synchronous."""
    average_every: int
    """Samples of the whole fleet that make one round."""
    max_lag: int
    """Rounds that a cluster may have contributed to and not merged yet."""
    optimizer_state_bytes_per_parameter_byte: float
    process_bytes: int
    """Memory of a stage's process before it holds any tensor of the model."""
    averaged_bytes_per_parameter_byte: float = 1.0
    """What a parameter byte takes when it travels to be averaged: 1 as it is, less in a shorter form."""
    averaging_state_bytes_per_parameter_byte: float = 0.0
    """Kept from round to round beside the anchor: an outer optimizer's momentum, what shorter forms left over."""
    robust_averaging: bool = False
    """Whether every member of a ring has to see each member's part, so that everyone sends its part to everyone."""
    hierarchical_averaging: bool = False
    """Whether a ring's members form groups, which average among themselves first, where that is faster."""
    activation_wire_ratio: float = 1.0
    """What a byte that needs a gradient takes on its way forward: 1 as it is, less in a shorter form. What needs none
    (masks, integers) always travels as it is."""
    gradient_wire_ratio: float = 1.0
    """What a gradient's byte takes on its way back."""
    schedule: Schedule = "async"
    splits_backward: bool = False
    """Whether stages may send input gradients before they compute weight gradients, where they have memory for it."""

    cast_bytes_per_parameter_byte: float = 0.0
    """Kept beside each live version of a weight: what it was cast to, where a run computes in another precision."""

    @property
    def averaged_number_bytes(self) -> float:
        """Return the bytes of one averaged number on the wire."""
        return PARAMETER_BYTES * self.averaged_bytes_per_parameter_byte

    def vectors_sent(self, members: float) -> float:
        """Return how many times its vector a member of a ring of so many sends in a round, on the average of all."""
        others = max(0.0, members - 1)
        return others if self.robust_averaging else 2 * others / max(members, 1.0)

    activation_checkpointing: ActivationCheckpointing = "never"
    """Whether stages may run their forwards twice, to keep fewer activations."""
    tied: Tied = "exact"
    """How parameters are trained that several stages of a cluster use."""
    reading_s: float = 0.0
    """The seconds in which one process reads a micro-batch of data, as the first and the last stage do."""
    readers: int = 0
    """Processes that read ahead in each first and last stage; 0: the stage reads by itself before each forward."""
    reader_bytes: int = 0
    """Memory of each of these processes."""

    def __post_init__(self) -> None:
        leasts = {"micro_batch": 1, "update_every": 1, "average_every": 1, "max_lag": 1}
        for field in fields(self):
            if field.type in (int, float):
                _require("workload", field.name, getattr(self, field.name), least=leasts.get(field.name, 0))
        if self.is_synchronous and self.max_staleness:
            raise InvalidInput(
                f"must be 0 with schedule {self.schedule}, not {self.max_staleness}", key="workload.max_staleness"
            )
        if self.largest_window > MOST_IN_FLIGHT:
            raise InvalidInput(
                f"(max_staleness + 1) · update_every must be at most {MOST_IN_FLIGHT:,}, not {self.largest_window:,}",
                key="workload.update_every",
            )

    def activation_bytes(self, unit: Unit) -> int:
        """Return the bytes that a cut at the unit's end sends forward for each micro-batch."""
        whole = unit.boundary_bytes - unit.boundary_gradient_bytes
        return math.ceil((whole + _shortened(unit, self.activation_wire_ratio)) * self.micro_batch)

    def gradient_bytes(self, unit: Unit) -> int:
        """Return the bytes that a cut at the unit's end sends back for each micro-batch."""
        return math.ceil(_shortened(unit, self.gradient_wire_ratio) * self.micro_batch)

    def tied_bytes(self, unit: Unit) -> int:
        """Return a micro-batch's share of the tied weights that such a cut sends forward, and of their gradients
        back.
        """
        return math.ceil(unit.tied_bytes / self.update_every) if self.tied == "exact" else 0

    def optimizer_beyond_ratio(self, unit: Unit) -> float:
        """Return the bytes of the unit's optimizer state beyond what the ratio of its weights says; they may be less
        than none.
        """
        if unit.optimizer_bytes is None:
            return 0.0
        return unit.optimizer_bytes - self.optimizer_state_bytes_per_parameter_byte * unit.parameter_bytes

    def round_samples(self, clusters: float) -> float:
        """Samples of the whole fleet from one round to the next: a round holds an update of each cluster at least."""
        return max(self.average_every, clusters * self.update_every * self.micro_batch)

    @property
    def is_synchronous(self) -> bool:
        """Say whether forwards and backwards have a fixed order, with a flush at each update."""
        return self.schedule in SYNCHRONOUS

    def held(self, stages: int, index: int) -> int:
        """Synchronous: micro-batches between forward and backward at stage `index` of `stages`, at most."""
        return held_micro_batches(self.schedule, stages, index, self.update_every)

    @property
    def largest_window(self) -> int:
        """Return the most micro-batches that `max_staleness` lets a cluster have in flight.

        The first stage admits a micro-batch of update u only when update u − max_staleness − 1 is done, so at most
        (max_staleness + 1) updates' micro-batches are on their way.
        """
        return (self.max_staleness + 1) * self.update_every


def _shortened(unit: Unit, ratio: float) -> float:
    """The bytes that need a gradient, in a form that takes `ratio` of each float32 byte: of 16 bits twice as much, or
    all of it where the form is no shorter than they are."""
    wide = unit.boundary_gradient_bytes - unit.boundary_narrow_bytes
    return ratio * wide + min(1.0, 2 * ratio) * unit.boundary_narrow_bytes


def _require(owner: str, name: str, value: float, *, least: int) -> None:
    if not (math.isfinite(value) and value >= least):
        raise InvalidInput(f"must be a finite number, {least} or more, not {value!r}", key=f"{owner}.{name}")
