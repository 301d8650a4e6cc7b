"""Clusters of nodes that a search names, with the cuts that it asks for or with the best ones, each computed once.

Nodes that are the same to every plan (inputs/twins.py) make the same clusters, so one that differs from another only by
such nodes is not computed again: a fleet of rented machines has few kinds of nodes, and a search asks for thousands of
clusters. In: the names of nodes. Out: a cluster, or None where rules or memory allow none.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from cluster_planner.inputs.constraints import LAST
from cluster_planner.inputs.fleet import Fleet
from cluster_planner.inputs.spans import SpanCosts
from cluster_planner.inputs.twins import twins_of
from cluster_planner.pipeline.best_pipeline import Pipeline, plan_pipeline, timed
from cluster_planner.pipeline.common_cuts import common_cuts, fast_cuts
from cluster_planner.pipeline.memory_fit import recomputing
from cluster_planner.plan import Cluster, Stage
from cluster_planner.search.arcs import open_tour

Pattern: TypeAlias = Cluster | None
"""A cluster that was made, of any nodes of these kinds in these places."""


class MadeClusters:
    """What makes clusters of the nodes of one fleet. `least`: stages of a cluster, at the least."""

    def __init__(self, fleet: Fleet, spans: SpanCosts, cuts: SpanCosts, least: int) -> None:
        """`cuts`: the same costs on the cut positions among which the best ones are looked for."""
        self._fleet, self._spans, self._cuts, self.least = fleet, spans, cuts, least
        self._rules, self._number_of = fleet.rules, fleet.arrays.number_of
        self.twins = twins_of(fleet)
        self._with_spans: dict[tuple[tuple[int, int, int], ...], Pattern] = {}
        self._cut_anew: dict[tuple[int, ...], Pattern] = {}
        self._in_common: dict[tuple[tuple[int, ...], ...], list[tuple[Cluster, ...]]] = {}
        self._planned: dict[tuple[int, ...], Pattern] = {}

    def twin(self, name: str) -> int:
        """Return the number of the first node that is the same to every plan."""
        return self.twins[self._number_of[name]]

    def of_spans(self, names: Sequence[str], spans: Sequence[tuple[int, int]]) -> Cluster | None:
        """Return the cluster of these nodes with these spans, with the window that it wants and has memory for; None
        where it has no memory, or a rule forbids it.
        """
        key = tuple((self.twin(name), *span) for name, span in zip(names, spans, strict=True))
        if key not in self._with_spans:
            self._with_spans[key] = self._made([Stage(name, span) for name, span in zip(names, spans, strict=True)])
        return _with_names(self._with_spans[key], names)

    def cut_anew(self, names: Sequence[str]) -> Cluster | None:
        """Return the cluster of these nodes in this order, each with a stage."""
        if (key := tuple(map(self.twin, names))) not in self._cut_anew:
            allowed = len(names) >= self.least and self.may_run(names)
            self._cut_anew[key] = _cluster(fast_cuts(self._fleet, self._cuts, names) if allowed else None)
        return _with_names(self._cut_anew[key], names)

    def in_common(self, orders: Sequence[Sequence[str]]) -> list[tuple[Cluster, ...]]:
        """Return the ways to give the clusters of these nodes, in these orders, the same cuts."""
        if (key := tuple(tuple(map(self.twin, names)) for names in orders)) not in self._in_common:
            allowed = len(orders[0]) >= self.least and all(map(self.may_run, orders))
            found = common_cuts(self._fleet, self._cuts, orders) if allowed else ()
            self._in_common[key] = [tuple(Cluster("", one.window, one.stages) for one in way) for way in found]
        named = (zip(way, orders, strict=True) for way in self._in_common[key])
        return [tuple(_named(cluster, names) for cluster, names in way) for way in named]

    def planned(self, names: Sequence[str]) -> Cluster | None:
        """Return the best cluster of these nodes, in any order."""
        ranked = sorted(names, key=lambda name: (self.twin(name), name))
        if (key := tuple(map(self.twin, ranked))) not in self._planned:
            allowed = len(names) >= self.least and self._may_share(names)
            found = plan_pipeline(self._fleet, self._cuts, ranked, 0.0, self.least) if allowed else None
            self._planned[key] = _cluster(found)
        if (pattern := self._planned[key]) is None:
            return None
        alike: dict[int, list[str]] = defaultdict(list)
        for name in reversed(ranked):
            alike[self.twin(name)].append(name)
        return _with_names(pattern, [alike[self.twin(stage.node)].pop() for stage in pattern.stages])

    def like(self, model: Cluster, names: Sequence[str], *, same_cuts: bool) -> Cluster | None:
        """Return the cluster that is most like another one: each of its stages is run by that one of these nodes which
        reaches whoever runs it there soonest with what a round averages, so that rings stay within regions.

        `same_cuts`: it has the cuts of the other, too; else the best ones. Where there are fewer nodes than stages, it
        is cut anew.
        """
        # Imported here, since only planning needs scipy (as in ring_timing/shares.py).
        from scipy.optimize import linear_sum_assignment

        there = [self._number_of[stage.node] for stage in model.stages]
        here = [self._number_of[name] for name in names]
        sent = np.array([self._spans.parameter_bytes(*stage.units) for stage in model.stages], dtype=np.float64)
        to_s, to_rate = self._fleet.arrays.between(there, here)
        back_s, back_rate = self._fleet.arrays.between(here, there)
        seconds = np.maximum(to_s + sent[:, None] / to_rate, (back_s + sent / back_rate).T)
        stages, chosen = linear_sum_assignment(seconds)
        taken = [names[i] for i in chosen]
        if same_cuts and len(stages) == len(there):
            return self.of_spans(taken, [stage.units for stage in model.stages])
        return self.cut_anew(taken)

    def along_tour(self, names: Sequence[str]) -> Cluster | None:
        """Return the cluster of these nodes, each with a stage, in an order with cheap hops."""
        tour = open_tour(self._fleet, tuple(self._number_of[name] for name in names), self._cuts.sent_bytes)
        return self.cut_anew([self._fleet.names[i] for i in tour])

    def may_run(self, names: Sequence[str]) -> bool:
        """Say whether these nodes may run stages in this order."""
        if not self._rules.are_any:
            return True
        places = self._rules.stage_of
        pinned = ((places.get(name), at) for at, name in enumerate(names))
        at_last = len(names) - 1
        return self._may_share(names) and all(
            place is None or at == (at_last if place == LAST else place) for place, at in pinned
        )

    def _may_share(self, names: Sequence[str]) -> bool:
        """Say whether these nodes may be in one cluster."""
        rules = self._rules
        return not rules.are_any or rules.allows(tuple(sorted(self._number_of[name] for name in names)))

    def _made(self, plain: Sequence[Stage]) -> Cluster | None:
        if len(plain) < self.least or not self.may_run([stage.node for stage in plain]):
            return None
        found: list[Pipeline] = []
        for window in (self._spans.workload.largest_window, 2 * len(plain), 1):
            stages = recomputing(self._fleet, self._spans, plain, window)
            if stages is not None and all(one.stages != stages for one in found):
                found.append(timed(self._fleet, self._spans, stages, 0.0))
        return _cluster(max(found, key=lambda one: one.value, default=None))


def _cluster(pipeline: Pipeline | None) -> Pattern:
    return None if pipeline is None else Cluster("", pipeline.window, pipeline.stages)


def _with_names(pattern: Pattern, names: Sequence[str]) -> Cluster | None:
    return None if pattern is None else _named(pattern, names)


def _named(pattern: Cluster, names: Sequence[str]) -> Cluster:
    if all(stage.node == name for stage, name in zip(pattern.stages, names, strict=True)):
        return pattern
    stages = (Stage(name, one.units, one.recomputes) for name, one in zip(names, pattern.stages, strict=True))
    return Cluster("", pattern.window, tuple(stages))
