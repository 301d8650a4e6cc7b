"""When it pays to stop a run that trains, plan anew for the nodes that are there, and go on from its checkpoint. Pure.

In: the plan as it is, the nodes that are there, by how much some are slower than planned, the clusters that train, and
the time. Out: for which nodes a plan is to be made, which takes the planner seconds or minutes, and whether to go on by
it now. With R the samples/s of the best plan, r those of the clusters as they will be when all that is under way has
begun, and p the pause:

    nodes state mtbf_hours    (R - r) · 1 / Σ 1/mtbf > R · p      the next change is expected after 1 / Σ 1/mtbf
    nobody knows              what was forgone since the last plan is R · p

The second loses at most twice what the best choice would have lost, whatever the nodes do (the rule for renting or
buying). Where no cluster stays, nothing is forgone by a stop. A plan that a user has given is not questioned as long as
its clusters make what they made at first, and nobody has come.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from cluster_planner import Fleet, Node, Plan, samples_per_s

WORTHWHILE = 1.05
"""The best plan makes so many times the samples, or the run is left alone."""

CONSIDER_EVERY_S = 5.0
"""How often it is considered whether another plan pays."""

_NAMED = 3
"""So many nodes are named in a reason, and of more the number."""


def lasts_s(nodes: Iterable[Node]) -> float | None:
    """Return after how many seconds the first of these nodes is expected to go; None where one does not state its
    mtbf_hours.
    """
    per_s = [0.0 if node.mtbf_s is None else 1.0 / node.mtbf_s for node in nodes]
    return 1.0 / sum(per_s) if per_s and all(per_s) else None


class Replanning:
    """Adds up what a run forgoes."""

    def __init__(self, pause_s: float) -> None:
        """`pause_s`: for how long nobody trains when a run is planned anew."""
        self._pause_s = pause_s
        self._forgone = 0.0
        self._last_s: float | None = None
        self._before = 0.0

    def pays(
        self, making_per_s: float, best_per_s: float, now_s: float, rest_s: float, lasts_s: float | None = None
    ) -> bool:
        """Return whether to plan anew now.

        Arguments:
            making_per_s: the samples/s that the clusters make which train, or begin to.
            best_per_s: what the best plan would make for the nodes that are there.
            rest_s: for how long the run goes on.
            lasts_s: after how long nodes are expected to change; None: nobody knows.
        """
        if self._last_s is not None:
            self._forgone += self._before * (now_s - self._last_s)
        better = best_per_s > WORTHWHILE * making_per_s
        self._last_s, self._before = now_s, best_per_s - making_per_s if better else 0.0
        if not better:
            self._forgone = 0.0
            return False
        costs = best_per_s * self._pause_s
        if lasts_s is not None:
            return (best_per_s - making_per_s) * min(lasts_s, rest_s) > costs
        return self._forgone >= costs and (best_per_s - making_per_s) * rest_s > costs


@dataclass(frozen=True)
class Situation:
    """How a run stands."""

    plan: Plan
    """The plan, with the stages as they are now."""
    nodes: frozenset[str]
    """The nodes that are there, and do not leave."""
    making: Collection[str] | None
    """The clusters that train or begin to, and stay; None: what becomes of some of them is not known yet."""
    now_s: float
    rest_s: float
    """For how long the run goes on; infinite where that is not known."""
    slow: Mapping[str, float]
    """By node: how many times as long as planned it takes."""


@dataclass(frozen=True)
class PlanWanted:
    """A plan is to be made for these `nodes`, whatever the clusters of `plan` are: it has the fleet as it is now."""

    plan: Plan
    nodes: frozenset[str]
    slow: Mapping[str, float]


@dataclass(frozen=True)
class BetterPlan:
    """The run is to go on by this plan, for this `reason`."""

    plan: Plan
    reason: str
    pause_s: float
    """For how long nobody trains, as predicted."""
    gained: float
    """The samples that it makes more in the rest of the run; infinite where that has no known end."""


class PlanningAnew:
    """Considers, from time to time, whether a session of a run is to end for another plan."""

    def __init__(self, pause_s: float, *, questioned: bool = False) -> None:
        """
        Arguments:
            pause_s: for how long nobody trains when a run is planned anew.
            questioned: whether the plan that the session began with was made by the run itself, and not by its user.
        """
        self._pause_s = pause_s
        self._questioned = questioned
        self._replanning = Replanning(pause_s)
        self._first: tuple[frozenset[str], float] | None = None
        """The nodes that were there at first, and what the clusters of the plan were to make then."""
        self._known: tuple[frozenset[str], Mapping[str, float], Plan | None] | None = None
        """The best plan for these nodes, which are so slow; None: there is none."""

    def consider(self, at: Situation) -> PlanWanted | BetterPlan | None:
        """Return what is to be done: make a plan and tell it (`found`), go on by another one, or nothing."""
        fleet = slowed(at.plan.fleet, at.slow)
        rate = None if at.making is None else sum(samples_per_s(at.plan, at.making, fleet).values())
        if self._first is None:
            names = [cluster.name for cluster in at.plan.clusters]
            self._first = at.nodes, sum(samples_per_s(at.plan, names).values())
        there, planned = self._first
        if rate is None or not (self._questioned or at.nodes - there or WORTHWHILE * rate < planned):
            return None
        if self._known is None or self._known[:2] != (at.nodes, at.slow):
            return PlanWanted(replace(at.plan, fleet=fleet), at.nodes, dict(at.slow))
        best = self._known[2]
        best_per_s = 0.0 if best is None else best.predicted.samples_per_s
        lasting_s = lasts_s(at.plan.fleet.node(name) for name in at.nodes)
        pays = self._replanning.pays(rate, best_per_s, at.now_s, at.rest_s, lasting_s)
        nobody_stays = not at.making and at.rest_s > self._pause_s
        if best is None or not (pays or nobody_stays):
            return None
        more = best_per_s - rate
        gained = more * at.rest_s - best_per_s * self._pause_s if math.isfinite(at.rest_s) else math.inf
        return BetterPlan(best, _reason(there, at, rate, best_per_s), self._pause_s, gained)

    def found(self, wanted: PlanWanted, plan: Plan | None) -> None:
        """The plan that was wanted has been made; None: the nodes cannot train the model."""
        self._known = wanted.nodes, wanted.slow, plan


def slowed(fleet: Fleet, slow: Mapping[str, float]) -> Fleet:
    """Return the fleet with the nodes that take so many times as long as planned as slow as they are."""
    if not slow:
        return fleet
    nodes = (
        replace(node, flops_per_s=node.flops_per_s / slow[node.name]) if node.name in slow else node
        for node in fleet.nodes
    )
    return replace(fleet, nodes=tuple(nodes))


def _reason(first: Collection[str], at: Situation, before: float, after: float) -> str:
    came, gone = sorted(at.nodes - set(first)), sorted(set(first) - at.nodes)
    said = [f"{name!r} takes {times:.1f} times as long as planned" for name, times in sorted(at.slow.items())]
    said += [f"{_names(came)} came"] if came else []
    said += [f"without {_names(gone)}"] if gone else []
    other = f"another plan makes {after:.3g} samples/s, and this one {before:.3g}"
    return f"{', '.join(said)}: {other}" if said else other


def _names(nodes: list[str]) -> str:
    return ", ".join(map(repr, nodes)) if len(nodes) <= _NAMED else f"{len(nodes)} nodes"
