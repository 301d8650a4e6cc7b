"""The way of the anchor from a checkpoint to a cluster that joins.

In: orders to hand over, each after its checkpoint is on the disk. Out: the state of the cluster's stages, queued in the
lane that yields to the pipeline. A thread reads the checkpoint, so that the driver goes on listening. What is read is
the latest one, which may be of a later round than that of the order: the averages that the stages have got since make
today's anchor of either.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass

from ravnest.driver.instructions import HandOver
from ravnest.driver.preparation import Prepared, StageState, hand_out
from ravnest.driver.resuming import ResumedRun, resumed_weights
from ravnest.errors import RavnestError
from ravnest.stage.setup import StageSetup
from ring_allreduce.transport import Endpoint, Outbox


@dataclass(frozen=True)
class SavedState:
    """The state that stages start from, by name: the anchor of a round of this session."""

    states: Mapping[str, StageState]
    round: int


Read = Callable[[HandOver, Mapping[str, StageSetup]], SavedState]
"""Reads the state for the stages of a cluster. Raises RavnestError."""


class StateHandover:
    """Hands state over to clusters that join."""

    def __init__(self, read: Read, disk: Executor, outbox: Outbox, endpoint: Endpoint) -> None:
        self._read = read
        self._disk = disk
        self._outbox = outbox
        self._endpoint = endpoint
        self._reading: dict[str, tuple[Mapping[str, StageSetup], Future[SavedState]]] = {}

    def order(self, order: HandOver, setups: Mapping[str, StageSetup]) -> None:
        """Read the state for a cluster, whose stages are `setups`."""
        self._reading[order.cluster] = setups, self._disk.submit(self._read, order, setups)

    def forget(self, cluster: str) -> None:
        """The cluster is lost: it needs nothing any more."""
        self._reading.pop(cluster, None)

    def turn(self) -> list[tuple[str, str]]:
        """Queue what has been read. Returns the clusters whose state could not be read, and why not."""
        failed = []
        for cluster, (setups, reading) in list(self._reading.items()):
            if not reading.done():
                continue
            del self._reading[cluster]
            try:
                saved = reading.result()
            except RavnestError as error:
                failed.append((cluster, str(error)))
            else:
                hand_out(self._outbox, self._endpoint, setups.values(), saved.states, saved.round)
        return failed


def joining_states(prepared: Prepared, order: HandOver, setups: Mapping[str, StageSetup]) -> SavedState:
    """The state of a cluster that joins, from the run's latest checkpoint. It goes on at the updates of the order.

    Its optimizers go on from the state of the stages that have trained the same parameters in another cluster, as after
    a resume onto other stages. Raises InvalidInput for a checkpoint that cannot be read, or lacks something.
    """
    plan, job = prepared.plan, prepared.job
    saved = ResumedRun.load(prepared.folder, plan, job)
    weights = resumed_weights(setups, plan, job, saved)
    states = {}
    for name, setup in setups.items():
        mine = {parameter for segment in setup.segments for parameter in segment.parameters}
        states[name] = StageState(weights, saved.checkpoint.optimizer_of(mine), order.updates)
    return SavedState(states, saved.rounds - prepared.rounds_before)
