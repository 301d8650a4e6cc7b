"""Nodes of a run that become slow, and stay so.

In: the updates of stages, with their ledgers. Out: word of it in the run's record, and to what decides whether a
cluster is planned anew (ravnest/recovery).
"""

from ravnest.driver.observe.place_events import NodeSlowEvent
from ravnest.driver.observe.record import RunRecord
from ravnest.recovery import COMPUTES, Replacements, Slowness
from ravnest.stage import messages as m


class SlowNodes:
    """Watches how long stages compute. It belongs to the driver's thread."""

    def __init__(self, replacements: Replacements, record: RunRecord, *, watches: bool = True) -> None:
        """`watches`: False where all stages are on this machine, which has no other to put them on."""
        self._slowness = Slowness()
        self._watches = watches
        self._replacements = replacements
        self._record = record

    def updated(self, stage: str, node: str, message: m.Updated, now_s: float) -> None:
        """A stage on `node` has made an update."""
        if not self._watches:
            return
        spent_s = sum(message.spent.get(state, 0.0) for state in COMPUTES)
        found = self._slowness.worked(stage, node, message.update, spent_s, now_s)
        if found is not None:
            self._record.happened(NodeSlowEvent(found.node, found.stage, found.times))
            self._replacements.node_slow(found.node, found.times, now_s)
