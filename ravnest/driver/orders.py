"""The words between a run's control and its driver: phases, what control asks for, and the run as it sees it. Pure.

Values only; control.py decides, the driver obeys.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

from ravnest.pipeline import stage_name
from ravnest.stage import messages as m
from ring_allreduce.transport import Message


class Phase(Enum):
    TRAINING = auto()
    DRAINING = auto()
    FINISHING = auto()
    EVALUATING = auto()
    DONE = auto()


@dataclass(frozen=True)
class Tell:
    """Send `message` to the stage named `peer`."""

    peer: str
    message: Message


@dataclass(frozen=True)
class PhaseEntered:
    phase: Phase


@dataclass(frozen=True)
class CheckpointBegun:
    """The stages will send their state as of `round`."""

    round: int
    samples: int  # behind the round's anchor
    updates: Mapping[str, int]  # by cluster, at its snapshot for the round


@dataclass(frozen=True)
class CheckpointArrived:
    """Every stage has sent its state for `round`."""

    round: int


@dataclass(frozen=True)
class RoundBegun:
    """A round has been opened. `final`: the one that ends the run."""

    round: int
    final: bool


@dataclass(frozen=True)
class RoundDone:
    round: int
    samples: int


@dataclass(frozen=True)
class EvaluationDone:
    """The sums as the last stage reported them. `final`: of the anchor. `samples`: when it was ordered."""

    samples: int
    evaluated: m.EvaluationFinished
    final: bool


Instruction = Tell | PhaseEntered | CheckpointBegun | CheckpointArrived | RoundBegun | RoundDone | EvaluationDone


@dataclass(frozen=True)
class RunShape:
    """The run as control sees it. Samples are the fleet's, counted from the run's first start."""

    clusters: Mapping[str, int]  # name → number of stages
    evaluator: str  # the cluster that evaluates: the fastest
    samples_per_update: int
    stop_samples: int | None
    stop_s: float | None
    evaluate_every: int
    held_out_batches: int
    start_samples: int = 0  # made before a resume
    start_updates: Mapping[str, int] = field(default_factory=dict)

    @property
    def stages(self) -> list[str]:
        return [stage_name(name, i) for name, count in self.clusters.items() for i in range(count)]
