"""Nodes that leave a run with notice: somebody asks for it, their hours end, or their system is about to end.

In: requests, and the notices of stages. Out: instructions by which the clusters on such a node hand on what they have
made. Nothing is started there until the node is back (arrivals.py). It belongs to the driver's thread.
"""

from ravnest.driver.cluster_starts import ClusterStarts
from ravnest.driver.control import RunControl
from ravnest.driver.instructions import Instruction
from ravnest.driver.node_requests import NodeRequest
from ravnest.driver.observe.record import RunRecord
from ravnest.driver.run_rings import RunRings
from ravnest.pipeline import stage_place
from ravnest.recovery import NodesLeft


class NodeDepartures:
    """Lets nodes leave a run."""

    def __init__(
        self, starts: ClusterStarts, control: RunControl, rings: RunRings, record: RunRecord, left: NodesLeft
    ) -> None:
        """`left`: the nodes that have left the run, those that were shut out among them."""
        self._left = left
        self._starts = starts
        self._control = control
        self._rings = rings
        self._record = record

    def asked(self, request: NodeRequest, now_s: float) -> list[Instruction]:
        """A user, the clock or Ray asks a node of the plan to leave."""
        does, by_clock = "has given notice" if request.noticed else "leaves", bool(request.why) and not request.noticed
        reason = f"node {request.node!r} {does}{request.because}"
        return self._leave(request.node, reason, now_s, by_clock=by_clock, noticed=request.noticed)

    def notice_of(self, stage: str, now_s: float) -> list[Instruction]:
        """The process of a stage was asked to end: its node is about to be gone.

        Nothing happens for a stage that neither is in the run nor stands by: its process ends anyway.
        """
        cluster, index = stage_place(stage)
        if stage not in self._control.clusters.stages and not self._starts.stands_by(stage):
            return []
        node = self._rings.plan.cluster(cluster).stages[index].node
        return self._leave(node, f"node {node!r} has given notice", now_s, noticed=True)

    def lied(self, stage: str, reason: str) -> None:
        """The cluster of a stage was found to lie, for this `reason`: nothing is started on its nodes any more."""
        for node in {each.node for each in self._rings.plan.cluster(stage_place(stage)[0]).stages}:
            self._left.shut_out(node, f"{stage}: {reason}")

    def _leave(
        self, node: str, reason: str, now_s: float, *, by_clock: bool = False, noticed: bool = False
    ) -> list[Instruction]:
        """The clusters that have a stage on the node leave with notice, and nothing is started there."""
        replacements, out = self._starts.replacements, list[Instruction]()
        self._starts.node_left(node, by_clock=by_clock, noticed=noticed)
        there = [each.name for each in self._rings.plan.clusters if node in [one.node for one in each.stages]]
        if not any(cluster in self._control.clusters or cluster in replacements.starting for cluster in there):
            self._record.notice(f"{reason}: no stage runs there, and none is started")
        for cluster in there:
            if cluster in replacements.starting:
                for said in self._starts.failed(cluster, reason, self._rings, now_s):
                    self._record.replacement_failed(said)
            orders = self._control.leave(cluster, reason)
            if orders:
                self._record.notice(f"{reason}: {cluster} hands on what it has made, and leaves")
            elif cluster in self._control.clusters.training and cluster not in self._control.clusters.leaving:
                saves = f"{cluster} goes on, and what it has made is saved"
                self._record.notice(f"{reason}, but no other cluster would stay that trains: {saves}")
                orders = self._control.ask("checkpoint")
            out += orders
        return out
