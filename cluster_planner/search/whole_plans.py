"""Better plans by small changes of whole plans, each judged with its rings and rounds: hill climbing.

A search over groups (local_search.py) asks what each group is worth by itself, and knows of averaging only what the
last plan took. This search changes stages: who runs which units. Every plan that it looks at is predicted as a whole
(plan_worths.py), first roughly, and exactly where that promises a gain, so it sees where a ring starves. The changes:

    exchange    two nodes, most often of the same units in two clusters, or a node and a spare; some are cut anew
    cut         a cut moves by a few units, in one cluster or in all that have it
    same cuts   a cluster takes the cuts of another, or all clusters those of one
    order       two neighbouring stages change places, in one cluster or in all with the same cuts, nodes and all
    leave       a node becomes spare, and the others of its cluster are cut anew; a whole cluster is dissolved
    join        a spare, or a node of another cluster, joins a cluster; spares found a cluster
    mix         a few nodes of up to three clusters, and a few spares, join these clusters elsewhere, or leave
    like        a cluster of spares is founded, or a cluster is made anew, with each stage near the same one of another
    anew        a cluster's order and cuts are planned again by themselves
    together    in all clusters with the same cuts a stage moves or leaves, and all are cut anew (common_cuts.py)

They are drawn by seed: exchanges and cuts at any stage and, as kinds of their own, where the plan is held up. One that
makes the plan worth more is taken. A plan that was worth no more is not tried again, nor one that differs from it only
by nodes that are equal in all that counts (inputs/twins.py). In: clusters. Out: clusters that are worth more.
"""

import itertools
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from cluster_planner.inputs.fleet import Fleet
from cluster_planner.inputs.spans import SpanCosts
from cluster_planner.plan import Cluster, Stage
from cluster_planner.predict.plan_worths import PlanWorths
from cluster_planner.search.made_clusters import MadeClusters

GAIN = 1e-6
"""A change must raise a plan's worth by more than this part of it."""

ROUGHLY = 0.004
"""A change that lowers a plan's rough worth by less than this part may raise its exact worth, and is tried."""

MORE, LESS = 1.5, 0.99
"""A kind of change is drawn so many times as often after it has gained something, and after it has not."""

LEAST = 0.1
"""A kind of change is drawn at least so many times as often as at the beginning."""

FARTHEST = 4
"""A cut moves by this many units at most."""

MOST_POSITIONS = 72
"""Nodes in a given order are cut anew at any unit where a model has no more cut positions than this."""

MOST_FOUNDERS = 8
"""At most so many spares found a cluster together."""

MOST_REMADE, MOST_MIXED = 3, 2
"""At most so many clusters are made anew like another one, or mixed: MOST_MIXED nodes of each, and one more spare."""

DRAWS = 4
"""So many times as many changes are drawn, at most, as are tried: those that lead to a plan that is known are not."""

Clusters = tuple[Cluster, ...]

Change = Callable[[Clusters, np.random.Generator], Clusters | None]
"""A function that returns the plan after one change that it draws, or None where there is no such change."""

Place = tuple[int, int]
"""The numbers of a cluster, and of a stage in it."""

DrawStage = Callable[[Clusters, np.random.Generator], Place]


class WholePlans:
    """Hill climbing over the plans of one fleet, model and workload."""

    def __init__(
        self,
        fleet: Fleet,
        spans: SpanCosts,
        worths: PlanWorths,
        names: Sequence[str],
        least: int,
        *,
        few: SpanCosts | None = None,
    ) -> None:
        """`names`: the nodes that may run stages. `least`: stages of a cluster, at the least. `few`: the same costs on
        few cut positions, on which pipelines are planned anew.
        """
        self._fleet, self._spans, self._worths, self._names = fleet, spans, worths, tuple(names)
        self._cuts = spans if few is None or len(spans.positions) <= MOST_POSITIONS else few
        self.made = MadeClusters(fleet, spans, self._cuts, least)
        self._rules, self._number_of = fleet.rules, fleet.arrays.number_of
        self._signs: dict[tuple[int, tuple[Stage, ...]], int] = {}
        self._limiting: list[tuple[int, int]] = []
        self._judged: dict[int, tuple[float, float]] = {}
        self._rough: dict[int, tuple[float, bool]] = {}
        drawn: Sequence[tuple[Change, float]] = (
            (partial(self._exchange, self._any_stage), 4),
            (partial(self._exchange, self._limiting_stage), 4),
            (partial(self._cut, self._any_stage), 2.5),
            (partial(self._cut, self._limiting_stage), 2.5),
            (self._join, 3),
            (self.mixed, 3),
            (self._same_cuts, 2),
            (self._order, 2),
            (self._leave, 2),
            (self._dissolve, 1),
            (self._found, 1),
            (self._anew, 1),
            (self._like, 3),
            (self._together, 2),
        )
        self._changes = [change for change, _ in drawn]
        self._weights = np.array([weight for _, weight in drawn]) / sum(weight for _, weight in drawn)

    def improved(
        self,
        clusters: Sequence[Cluster],
        tries: int,
        seed: int,
        *,
        tell: Callable[[float, Clusters], bool] | None = None,
    ) -> tuple[Clusters, float]:
        """Return better clusters, and what they are worth, after trying so many changes.

        `tell` hears of each better plan and of its worth, and says whether to go on.
        """
        random = np.random.default_rng(seed)
        now: Clusters = tuple(clusters)
        worth, rough, weights = self._worths.of(now), self._worths.of(now, roughly=True), self._weights.copy()
        self._limiting = self._worths.limiting(now)
        for _ in range(DRAWS * tries):
            kind = int(random.choice(len(weights), p=weights / weights.sum()))
            changed = self._changes[kind](now, random)
            if changed is None or self.was_less(changed, (worth, rough)) or not self._is_allowed(changed):
                continue
            tries -= 1
            if (better := self.better(changed, (worth, rough))) is None:
                weights[kind] = max(weights[kind] * LESS, self._weights[kind] * LEAST)
            else:
                now, (worth, rough) = changed, better
                self._limiting = self._worths.limiting(now)
                weights[kind] = min(weights[kind] * MORE, 3.0)
                if tell is not None and not tell(worth, now):
                    break
            if tries == 0:
                break
        return now, worth

    def better(
        self, changed: Clusters, now: tuple[float, float], *, slack: float = ROUGHLY
    ) -> tuple[float, float] | None:
        """Return (worth, rough worth) of a plan that is worth more than `now`, which are the same of another; else
        None. It is judged exactly where its rough worth is lower by less than `slack`, a part.
        """
        least, rough_least = now[0] * (1 + GAIN), now[1] * (1 - slack)
        about = self._roughly(changed, rough_least)
        if about <= rough_least:
            self._judged[self._sign(changed)] = about, about
            return None
        exact = self._worths.of(changed, above=least)
        self._judged[self._sign(changed)] = max(now[0], exact), np.inf
        return (exact, about) if exact > least else None

    def was_less(self, changed: Clusters, now: tuple[float, float]) -> bool:
        """Say whether this plan, or one that differs by equal nodes only, was found to be worth no more than `now`, or
        so much less roughly that it was not judged exactly.
        """
        most, about = self._judged.get(self._sign(changed), (np.inf, np.inf))
        return most <= now[0] or about <= now[1] * (1 - ROUGHLY)

    def _roughly(self, clusters: Clusters, above: float = 0.0) -> float:
        """Return what a plan is worth roughly; where that is not above `above`, a number that is no less and not above
        it either. What is known of a plan is kept.
        """
        sign = self._sign(clusters)
        about, is_exact = self._rough.get(sign, (np.inf, False))
        if not is_exact and about > above:
            about = self._worths.of(clusters, roughly=True, above=above)
            self._rough[sign] = about, about > above
        return about

    def _sign(self, clusters: Clusters) -> int:
        """Return a number that is the same for plans that differ by equal nodes, and the order of clusters, only."""
        return hash(tuple(sorted(self._sign_of(cluster) for cluster in clusters)))

    def _sign_of(self, cluster: Cluster) -> int:
        if (key := (cluster.window, cluster.stages)) not in self._signs:
            stages = ((self.made.twin(one.node), one.units, one.recomputes) for one in cluster.stages)
            self._signs[key] = hash((cluster.window, *stages))
        return self._signs[key]

    def _is_allowed(self, clusters: Clusters) -> bool:
        if len(clusters) < self._rules.min_clusters:
            return False
        if not self._rules.pinned:
            return True
        runs = {self._number_of[stage.node] for cluster in clusters for stage in cluster.stages}
        return self._rules.pinned <= runs

    def with_cut_moved(self, now: Clusters, at: Place, by: int, *, together: bool) -> Clusters | None:
        """Return the plan with the cut after (cluster, stage) moved by so many units, there or in all that have it."""
        old, changed = now[at[0]].stages[at[1]].units[1], {}
        for place, cluster in enumerate(now):
            ends = [stage.units[1] for stage in cluster.stages]
            if (place == at[0] or together) and old in ends[:-1]:
                ends[ends.index(old)] += by
                changed[place] = self._recut(cluster, ends)
        return self.replaced(now, changed)

    def with_cuts_of(self, now: Clusters, i: int, others: Sequence[int]) -> Clusters | None:
        """Return the plan in which these clusters, which have as many stages, have the cuts of cluster i."""
        ends = [stage.units[1] for stage in now[i].stages]
        return self.replaced(now, {at: self._recut(now[at], ends) for at in others})

    def with_exchange(self, now: Clusters, one: Place, other: Place, *, anew: bool = False) -> Clusters | None:
        """Return the plan in which the nodes of two clusters' stages have changed places. `anew`: they are cut anew."""
        (i, s), (j, t) = one, other
        a, b = now[i].stages[s].node, now[j].stages[t].node
        return self.replaced(now, {i: self._with(now[i], {s: b}, anew=anew), j: self._with(now[j], {t: a}, anew=anew)})

    @staticmethod
    def aligned(now: Clusters, at: Place, j: int) -> int:
        """Return the number of the stage of cluster j that runs the middle unit of this (cluster, stage)."""
        middle = sum(now[at[0]].stages[at[1]].units) // 2
        return next(t for t, stage in enumerate(now[j].stages) if middle < stage.units[1])

    def _any_stage(self, now: Clusters, random: np.random.Generator) -> Place:
        i = int(random.integers(len(now)))
        return i, int(random.integers(len(now[i].stages)))

    def _limiting_stage(self, _: Clusters, random: np.random.Generator) -> Place:
        """Draw (cluster, stage) of those that hold the plan up."""
        return self._limiting[int(random.integers(len(self._limiting)))]

    # One change each: the plan after it, or None where there is no such change.

    def _exchange(self, drawn: DrawStage, now: Clusters, random: np.random.Generator) -> Clusters | None:
        (i, s), anew = drawn(now, random), random.random() < 0.3
        spares = self.spares(now) if random.random() < 0.25 else []
        if spares:
            return self.replaced(now, {i: self._with(now[i], {s: str(random.choice(spares))}, anew=anew)})
        j = int(random.integers(len(now)))
        if i == j:
            t = int(random.integers(len(now[j].stages)))
            a, b = now[i].stages[s].node, now[j].stages[t].node
            return None if s == t else self.replaced(now, {i: self._with(now[i], {s: b, t: a}, anew=anew)})
        aligned = random.random() < 0.7
        t = self.aligned(now, (i, s), j) if aligned else int(random.integers(len(now[j].stages)))
        return self.with_exchange(now, (i, s), (j, t), anew=anew)

    def _cut(self, drawn: DrawStage, now: Clusters, random: np.random.Generator) -> Clusters | None:
        i, s = drawn(now, random)
        if len(now[i].stages) < 2:
            return None
        by, before = int(random.integers(1, FARTHEST + 1)), random.random() < 0.5
        # The cut before a stage moves on, or that after it back, so that the stage gets smaller.
        if (before and s > 0) or s == len(now[i].stages) - 1:
            s, by = s - 1, -by
        return self.with_cut_moved(now, (i, s), -by, together=random.random() < 0.5)

    def _same_cuts(self, now: Clusters, random: np.random.Generator) -> Clusters | None:
        i, everyone = int(random.integers(len(now))), random.random() < 0.5
        alike = [at for at, c in enumerate(now) if at != i and len(c.stages) == len(now[i].stages)]
        if not alike:
            return None
        return self.with_cuts_of(now, i, alike if everyone else [alike[int(random.integers(len(alike)))]])

    def _order(self, now: Clusters, random: np.random.Generator) -> Clusters | None:
        i = int(random.integers(len(now)))
        count = len(now[i].stages)
        if count < 2:
            return None
        s, everyone, whole = int(random.integers(count - 1)), random.random() < 0.6, random.random()
        ends = [stage.units[1] for stage in now[i].stages]
        changed = {}
        for at, cluster in enumerate(now):
            if at == i or (everyone and [stage.units[1] for stage in cluster.stages] == ends):
                names = [stage.node for stage in cluster.stages]
                if whole < 0.5:
                    names[s], names[s + 1] = names[s + 1], names[s]
                elif whole < 0.75:
                    names = names[::-1]
                else:
                    names = names[s + 1 :] + names[: s + 1]
                changed[at] = self.made.of_spans(names, [stage.units for stage in cluster.stages])
        return self.replaced(now, changed)

    def _leave(self, now: Clusters, random: np.random.Generator) -> Clusters | None:
        i = int(random.integers(len(now)))
        s = int(random.integers(len(now[i].stages)))
        names = [stage.node for at, stage in enumerate(now[i].stages) if at != s]
        return self.replaced(now, {i: self.made.cut_anew(names)})

    def _dissolve(self, now: Clusters, random: np.random.Generator) -> Clusters | None:
        i = int(random.integers(len(now)))
        return now[:i] + now[i + 1 :] if len(now) > 1 else None

    def _join(self, now: Clusters, random: np.random.Generator) -> Clusters | None:
        i = int(random.integers(len(now)))
        spares = self.spares(now)
        changed: dict[int, Cluster | None] = {}
        if spares and random.random() < 0.5:
            joins = spares[int(random.integers(len(spares)))]
        else:
            j = int(random.integers(len(now)))
            if i == j:
                return None
            s = int(random.integers(len(now[j].stages)))
            joins = now[j].stages[s].node
            left = [stage.node for at, stage in enumerate(now[j].stages) if at != s]
            if (without := self.made.cut_anew(left)) is None:
                return None
            changed[j] = without
        names = [stage.node for stage in now[i].stages]
        names.insert(int(random.integers(len(names) + 1)), joins)
        changed[i] = self.made.cut_anew(names)
        return self.replaced(now, changed)

    def mixed(self, now: Clusters, random: np.random.Generator) -> Clusters | None:
        """Return the plan with a few nodes of up to MOST_REMADE clusters, and spares, elsewhere in these clusters."""
        chosen = random.permutation(len(now))[: int(random.integers(1, MOST_REMADE + 1))].tolist()
        names = {at: [stage.node for stage in now[at].stages] for at in chosen}
        moved = random.permutation(self.spares(now))[: int(random.integers(MOST_MIXED + 2))].tolist()
        for at in chosen:
            for _ in range(min(int(random.integers(MOST_MIXED + 1)), len(names[at]) - 1)):
                moved.append(names[at].pop(int(random.integers(len(names[at])))))
        for name in random.permutation(moved).tolist():
            to = names[chosen[int(random.integers(len(chosen)))]]
            if random.random() < 0.8:
                to.insert(int(random.integers(len(to) + 1)), name)
        return self.replaced(now, {at: self.made.cut_anew(names[at]) for at in chosen})

    def _found(self, now: Clusters, random: np.random.Generator) -> Clusters | None:
        spares = self.spares(now)
        if len(spares) < self.made.least:
            return None
        first = spares[int(random.integers(len(spares)))]
        latency_s, _ = self._fleet.arrays.between([self._number_of[first]], [self._number_of[name] for name in spares])
        nearest = [spares[i] for i in np.argsort(latency_s[0], kind="stable")]
        count = int(random.integers(self.made.least, min(len(nearest), MOST_FOUNDERS) + 1))
        planned = self.made.planned if random.random() < 0.3 else self.made.along_tour
        cluster = planned(nearest[:count])
        return None if cluster is None else (*now, cluster)

    def _anew(self, now: Clusters, random: np.random.Generator) -> Clusters | None:
        i = int(random.integers(len(now)))
        names = [stage.node for stage in now[i].stages]
        planned = self.made.planned if random.random() < 0.3 else self.made.cut_anew
        return self.replaced(now, {i: planned(names)})

    def _like(self, now: Clusters, random: np.random.Generator) -> Clusters | None:
        order, same_cuts = random.permutation(len(now)).tolist(), random.random() < 0.5
        left_out = set(order[1 : 1 + int(random.integers(MOST_REMADE + 1))])
        plan: Clusters = tuple(cluster for at, cluster in enumerate(now) if at not in left_out)
        best, most, least = None, 0.0, self._roughly(now) * (1 - ROUGHLY)
        while (cluster := self.made.like(now[order[0]], self.spares(plan), same_cuts=same_cuts)) is not None:
            plan = (*plan, cluster)
            worth = self._roughly(plan, least) if len(plan) >= len(now) else 0.0
            if len(plan) > len(now) and worth <= most:
                break
            best, most = plan, worth
        return best

    def _together(self, now: Clusters, random: np.random.Generator) -> Clusters | None:
        i = int(random.integers(len(now)))
        cuts = [stage.units for stage in now[i].stages]
        alike = [at for at, cluster in enumerate(now) if [stage.units for stage in cluster.stages] == cuts]
        places, what = list(range(len(cuts))), random.random()
        moved = places.pop(int(random.integers(len(places))))
        if what < 0.75:
            places.insert(int(random.integers(len(places) + 1)), moved)
        orders = [[now[at].stages[place].node for place in places] for at in alike]
        if len(alike) < 2 or not places:
            return None
        ways = (dict[int, Cluster | None](zip(alike, made, strict=True)) for made in self.made.in_common(orders))
        plans = (plan for way in ways if (plan := self.replaced(now, way)) is not None)
        return max(plans, key=self._roughly, default=None)

    def spares(self, now: Clusters) -> list[str]:
        running = {stage.node for cluster in now for stage in cluster.stages}
        return [name for name in self._names if name not in running]

    def _with(self, cluster: Cluster, nodes: dict[int, str], *, anew: bool) -> Cluster | None:
        names = [nodes.get(at, stage.node) for at, stage in enumerate(cluster.stages)]
        return self.made.cut_anew(names) if anew else self.made.of_spans(names, [one.units for one in cluster.stages])

    def _recut(self, cluster: Cluster, ends: Sequence[int]) -> Cluster | None:
        cuts = list(itertools.pairwise((0, *ends)))
        if any(start >= end for start, end in cuts) or cuts[-1][1] != self._spans.count:
            return None
        return self.made.of_spans([stage.node for stage in cluster.stages], cuts)

    @staticmethod
    def replaced(now: Clusters, changed: dict[int, Cluster | None]) -> Clusters | None:
        """Return the plan with these clusters in their places; None where one of them is impossible."""
        if not changed or any(one is None for one in changed.values()):
            return None
        return tuple(changed.get(at) or cluster for at, cluster in enumerate(now))
