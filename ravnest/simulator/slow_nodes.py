"""Nodes of a simulated run that take longer to compute than they used to, and what is noticed of it.

In: the scenario's `slow`, and the stages that are in the run. Out: by how much their computations are stretched, and
which nodes are found to be slow, by the code that finds it in a run (recovery/slowness.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cluster_planner import Plan
from ravnest.recovery import COMPUTES, NodeSlow, Slowness
from ravnest.simulator.fleet import places
from ravnest.simulator.run import VirtualRun
from ravnest.simulator.scenario import Slow

LOOK_EVERY_S = 1.0
"""How often it is looked what stages have computed."""


class SlowNodes:
    """The nodes of a session that are slow."""

    def __init__(
        self, slow: Sequence[Slow], run: VirtualRun, plan: Plan, first: Plan, found: Callable[[NodeSlow], None]
    ) -> None:
        """
        Arguments:
            plan: that of the session. The run knows where its stages are now.
            first: the plan that has the nodes as they are when nothing slows them.
            found: hears of nodes that are found to be slow, or not to be any more.
        """
        self._slow = slow
        self._run = run
        self._planned = {node.name: node.flops_per_s for node in plan.fleet.nodes}
        self._own = {node.name: node.flops_per_s for node in first.fleet.nodes}
        self._found = found
        self._slowness = Slowness()

    def __bool__(self) -> bool:
        return bool(self._slow)

    def look(self, plan: Callable[[], Plan]) -> None:
        """Let the stages compute at the speeds of now, and look what they have computed, until the run drains.

        `plan`: returns the plan, with the nodes that the stages are on now.
        """
        run, now_s = self._run, self._run.clock.now_s
        if run.draining:
            return
        run.clock.after(LOOK_EVERY_S, self.look, plan)
        for who, place in places(each for each in plan().clusters if each.name in run.rounds.clusters):
            stage = run.stages[who]
            stage.pace = self._pace(place.node, now_s)
            seconds = stage.machine.ledger.seconds
            spent_s = sum(seconds.get(state, 0.0) for state in COMPUTES)
            said = self._slowness.worked(who, place.node, stage.machine.version, spent_s, now_s)
            if said is not None:
                self._found(said)

    def _pace(self, node: str, now_s: float) -> float:
        """How many times as long as planned the node computes. A plan that was made anew has its speed already."""
        pace = self._planned[node] / self._own[node]
        for each in self._slow:
            if each.node == node and each.at_s <= now_s < each.at_s + each.for_s:
                pace *= each.times
        return pace
