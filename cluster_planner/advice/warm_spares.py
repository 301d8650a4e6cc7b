"""Which spares are warm: whose stages each follows, so that it can take the place of one that is lost.

In: a plan, and the nodes that run no stage. Out: by stage, the node that shadows it. A spare that follows a stage is
sent one average of it in each round, which its ring's members divide among them; it sends nothing. That is worth

    (cold_s − WARM_S) / mtbf_s · r'   more samples/s, and costs   R − R'

where cold_s is what processes take to start and the anchor takes on the links, r' is what the cluster makes with the
spare in the stage's place, and R and R' are what all make without and with what the spare is sent. The best pairs are
chosen one after another, as long as they gain. A stage has one warm spare at most. A spare may shadow several stages,
as far as its memory holds all that it follows, and any one of them whole. In what a pair is worth, r' is computed only
where a bound of it, by the spare's speed alone, leaves the pair among the best.

A stage whose node states no `mtbf_hours` is not shadowed. To follow takes uplink from everybody for as long as the run
lasts, and pays by how often nodes are lost, of which nothing is known then.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush

import numpy as np
from numpy.typing import NDArray

from cluster_planner.inputs.fleet import Fleet
from cluster_planner.inputs.spans import Floats, SpanCosts
from cluster_planner.pipeline.cluster_anew import forbidden
from cluster_planner.pipeline.memory_fit import stage_fits
from cluster_planner.plan import Cluster, Plan, Spare
from cluster_planner.predict.followed_plan import FollowedPlan
from cluster_planner.predict.prediction import predict
from cluster_planner.rings import RingMember

START_S = 10.0
"""How long a cold spare's processes take until they listen, the wait before them included."""

WARM_S = 2.0
"""How long a warm spare takes for the same."""

MOST_SHADOWED = 64
"""At most so many stages are shadowed: each is one more prediction of the whole fleet."""

MOST_TRIED = 3
"""A stage is given up after so many spares that would cost more than they are worth: what it costs to be followed
hardly depends on by whom.
"""


def with_warm_spares(plan: Plan) -> Plan:
    """Return the plan with what its spares shadow, and predicted with what they are sent."""
    chosen = shadows_among(plan, [spare.node for spare in plan.spares])
    if not chosen:
        return plan
    spares = tuple(
        replace(spare, shadows=tuple(sorted(of for of, node in chosen.items() if node == spare.node)))
        for spare in plan.spares
    )
    spans = SpanCosts(plan.costs, plan.workload)
    forecast = predict(plan.fleet, spans, plan.clusters, plan.rings, spares).prediction
    before = plan.predicted
    predicted = replace(
        forecast, advice=before.advice, bottleneck=before.bottleneck, best_possible=before.best_possible
    )
    return replace(plan, spares=spares, predicted=predicted)


def shadows_among(
    plan: Plan, free: Collection[str], following: Mapping[RingMember, str] | None = None
) -> dict[RingMember, str]:
    """Return by stage, (cluster name, stage index), which of the `free` nodes should shadow it.

    `following`: the nodes that shadow stages already.
    """
    fleet, spans = plan.fleet, SpanCosts(plan.costs, plan.workload)
    if len(plan.clusters) < 2:
        return {}  # nobody is left in the rings from whom a spare could have anything
    pairs = _Pairs(plan, spans)
    left = [pair for pair in pairs.of(sorted(free)) if pair.of not in (following or {})]
    heapify(left)
    chosen: dict[RingMember, str] = {}
    useless = dict.fromkeys((pair.of for pair in left), 0)
    rate = pairs.followed.samples_per_s(_spares(following or {})) if left else 0.0
    while left and len(chosen) < MOST_SHADOWED:
        pair = heappop(left)
        of, node = pair.of, pair.node
        if of in chosen or useless[of] == MOST_TRIED:
            continue
        if not _fits(fleet, spans, plan, [*(s for s, at in chosen.items() if at == node), of], node):
            continue
        if not pair.exact:
            if _allowed(fleet, plan.cluster(of[0]), of[1], node):
                heappush(left, pairs.exactly(pair))
            continue
        with_it = pairs.followed.samples_per_s(_spares({**(following or {}), **chosen, of: node}))
        if -pair.less > rate - with_it:
            chosen[of], rate = node, with_it
        else:
            useless[of] += 1
    return chosen


@dataclass(frozen=True, order=True)
class _Pair:
    """A stage and a spare that may follow it. `less`: what that is worth while it costs nothing, in samples/s less than
    0, so that the best pair is the least; where that is not `exact`, it is worth no more. `by`: the same, of each of
    the samples/s that the cluster makes with the spare.
    """

    less: float
    of: RingMember
    node: str
    by: float
    exact: bool = False


class _Pairs:
    """What stages of a plan and spares that follow them are worth, pair by pair."""

    def __init__(self, plan: Plan, spans: SpanCosts) -> None:
        self._plan, self._spans = plan, spans
        self.followed = FollowedPlan(plan.fleet, spans, plan.clusters, plan.rings)
        self._numbers = {cluster.name: number for number, cluster in enumerate(plan.clusters)}
        self._usual = [each.samples_per_s for each in plan.predicted.clusters]

    def of(self, free: Sequence[str]) -> Iterator[_Pair]:
        """Yield the pairs of stages whose nodes are known to be lost, and nodes with the memory for them."""
        plan, spans, sites = self._plan, self._spans, self._plan.fleet.arrays
        numbers = np.array([sites.number_of[node] for node in free], dtype=np.int64)
        for cluster, usual in zip(plan.clusters, self._usual, strict=True):
            for index, stage in enumerate(cluster.stages):
                of, mtbf_s = (cluster.name, index), plan.fleet.node(stage.node).mtbf_s
                if mtbf_s is None:
                    continue
                place, recomputes = (index, len(cluster.stages)), stage.recomputes
                needed = spans.stage_memory_bytes(*stage.units, place, cluster.window, recomputes=recomputes)
                able = np.flatnonzero(sites.room_bytes[numbers] >= needed)
                by = (START_S - WARM_S + self._handover_s(of, numbers[able])) / mtbf_s
                flops = spans.flops(*stage.units, recomputes=recomputes)
                most = np.minimum(usual, plan.workload.micro_batch * sites.flops_per_s[numbers[able]] / flops)
                for i, each, rate in zip(able.tolist(), by.tolist(), most.tolist(), strict=True):
                    yield _Pair(-each * rate, of, free[i], each)

    def exactly(self, pair: _Pair) -> _Pair:
        """Return the pair with what it is worth."""
        number = self._numbers[pair.of[0]]
        rate = min(self._usual[number], self.followed.with_spare(number, pair.of[1], pair.node))
        return replace(pair, less=-pair.by * rate, exact=True)

    def _handover_s(self, of: RingMember, numbers: NDArray[np.int64]) -> Floats:
        """Return how long the anchor of a stage takes from the members of its rings to each of these nodes, each
        segment from the one that has the fastest link to it.
        """
        plan, number_of = self._plan, self._plan.fleet.arrays.number_of
        seconds = np.zeros(len(numbers))
        for ring in plan.rings:
            if of in ring.members:
                nodes = (plan.cluster(name).stages[index].node for name, index in ring.members if (name, index) != of)
                _, rates = plan.fleet.arrays.between([number_of[node] for node in nodes], numbers)
                seconds += self._spans.parameter_bytes(*ring.units) / rates.max(axis=0)
        return seconds


def _spares(shadowing: Mapping[RingMember, str]) -> tuple[Spare, ...]:
    nodes = sorted(set(shadowing.values()))
    return tuple(Spare(node, "", tuple(of for of, at in shadowing.items() if at == node)) for node in nodes)


def _allowed(fleet: Fleet, cluster: Cluster, index: int, node: str) -> bool:
    """Say whether constraints let the node take the place of a stage."""
    at = {node if i == index else stage.node: i for i, stage in enumerate(cluster.stages)}
    return forbidden(fleet, at, len(cluster.stages)) is None


def _fits(fleet: Fleet, spans: SpanCosts, plan: Plan, stages: Sequence[RingMember], node: str) -> bool:
    """Say whether the node holds all that it follows of these stages, and any one of them at work."""
    there, follows, follows_on_host = fleet.node(node), 0, 0
    for name, index in stages:
        cluster = plan.cluster(name)
        stage, place = cluster.stages[index], (index, len(cluster.stages))
        follows += spans.memory_bytes(*stage.units, 0)
        follows_on_host += spans.host_bytes(*stage.units, 0)
        if not stage_fits(there, spans, stage, place, cluster.window):
            return False
    return follows <= there.room_bytes and follows_on_host <= there.host_room_bytes
