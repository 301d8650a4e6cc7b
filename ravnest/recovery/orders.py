"""What is to be done about clusters that are lost, and what there is to say of it.

In: decisions of replacing.py. Out: orders to the driver, or the simulator, which carries them out.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from cluster_planner import Plan
from ravnest.recovery.placing import Placement


@dataclass(frozen=True)
class StartCluster:
    """Start the processes of `cluster` anew, as `placement` says."""

    cluster: str
    placement: Placement
    reason: str
    """Why it does not go back to where it was; empty where it does."""
    rest_s: float
    """For how long the run goes on, as far as that is known."""

    @property
    def plan(self) -> Plan:
        """The plan, with the cluster as it is started."""
        return self.placement.plan


@dataclass(frozen=True)
class TryFailed:
    """A try has failed for this `reason`. `again_s` says in how many seconds the next begins; None: there is none."""

    cluster: str
    reason: str
    again_s: float | None


@dataclass(frozen=True)
class Replaced:
    """The cluster trains again, on these nodes (by stage), so many `seconds` after its loss."""

    cluster: str
    nodes: Mapping[str, str]
    seconds: float
    samples: int
    """What it had trained on when it was lost, and is in no committed round."""
    new: bool = False
    """Whether the run had no such cluster before: it was not lost, and `seconds` count from the decision."""


@dataclass(frozen=True)
class SharedOut:
    """The cluster cannot be made, for this `reason`: until it can, its living `nodes` are spares of the others."""

    cluster: str
    nodes: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class MoveCluster:
    """A cluster that trains is to leave the run with notice: for this `reason` it is planned anew."""

    cluster: str
    reason: str


Order = StartCluster | TryFailed | SharedOut | MoveCluster
