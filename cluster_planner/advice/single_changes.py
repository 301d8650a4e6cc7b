"""What one change would help most: a faster machine or link, more memory, longer hours, another setting of the job.

Changes are tried: for each cluster the machine or link that limits it is made twice as good, everything else of the
plan stays, and the whole is predicted again; where clusters wait for averaging, this is done to the machine or link
that averaging keeps busiest. Settings of the job come from job_changes.py and shorter_forms.py. The change after which
the plan is worth most, by the objective, is the advice. Of more than MANY clusters only the TRIED fastest are looked
at, and none that could not gain enough if all of its machines and links were twice as good.

Longer hours are suggested for those nodes of a cluster that have the same hours, together, since any one of them alone
would change nothing. Hours change what the plan is worth and no speed, so nothing is predicted again for them.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from cluster_planner.advice.job_changes import (
    FEWEST_ROUNDS,
    KEYS,
    WORTHWHILE,
    Suggestion,
    is_round_capped,
    job_changes,
    most_of,
)
from cluster_planner.advice.shorter_forms import shorter_forms, shorter_rounds
from cluster_planner.formatting import format_rate
from cluster_planner.inputs.constraints import ALL_DAY, common_hours, hours_to, part_of_day
from cluster_planner.inputs.fleet import Fleet
from cluster_planner.inputs.links import Link
from cluster_planner.inputs.spans import SpanCosts
from cluster_planner.pipeline.best_pipeline import plan_pipeline, timed
from cluster_planner.plan import Cluster, Plan, Prediction, Ring
from cluster_planner.predict.objective import averaging_factor, averaging_per_s, staleness_factor
from cluster_planner.predict.prediction import WAITS_FOR_ROUNDS, ClusterLimit, Forecast, predict
from cluster_planner.predict.stage_times import host_key
from cluster_planner.rings import make_rings, ring_traffic

MANY, TRIED = 12, 3

MOST_NODES_FOR_MEMORY = 128
"""In larger fleets more memory is not tried, since each cluster would be planned anew for each of its nodes."""

SHOWN = 5
"""At most as many changes of each kind are named."""

MEMORY_FACTORS = (1.25, 1.5, 2.0)

WAITING = f"every cluster {WAITS_FOR_ROUNDS}"

TOO_FEW_ROUNDS = f"; a larger average_every is not advised: training would have fewer than {FEWEST_ROUNDS} rounds"


@dataclass(frozen=True)
class Advice:
    """One line, the index of the cluster whose machine or link it is about, if any, and the change that is advised.

    `words` and `aside` make up the line; what the change brings with another plan is said between the two.
    `bottleneck`: what that machine or link holds up, in words, which helps most if it is better; None where none helps.
    """

    words: str
    cluster: int | None = None
    change: Suggestion | None = None
    bottleneck: str | None = None
    aside: str = ""

    @property
    def line(self) -> str:
        """All that is said."""
        return self.words + self.aside


def most_helpful_changes(
    plan: Plan, most_round: float = math.inf, without_constraints: Sequence[Suggestion] = ()
) -> list[Suggestion]:
    """Return the changes after which a finished plan would be worth most, the best first: SHOWN at most, and as many
    constraints of nodes.yaml.

    Arguments:
        plan: the plan; its clusters, cuts and rings stay as they are.
        most_round: no larger `average_every` is suggested, in samples.
        without_constraints: what plans without single constraints would be worth, the best first.
    """
    spans = SpanCosts(plan.costs, plan.workload)
    forecast = predict(plan.fleet, spans, plan.clusters, plan.rings)
    found = suggestions(plan.fleet, spans, plan.clusters, plan.rings, forecast, most_round)[:SHOWN]
    return sorted((*found, *without_constraints[:SHOWN]), key=lambda one: -one.worth)


def suggestions(
    fleet: Fleet,
    spans: SpanCosts,
    clusters: Sequence[Cluster],
    rings: Sequence[Ring],
    forecast: Forecast,
    most_round: float = math.inf,
) -> list[Suggestion]:
    """Changes that are worthwhile; the one that gains most first. `most_round`: no larger average_every is tried, in
    samples.
    """
    now, given = forecast.prediction, (fleet, spans, clusters, rings, forecast)
    found = [one for one in _better_machines(*given) if one.worth > now.objective * (1 + WORTHWHILE)]
    found += longer_hours(fleet, spans, clusters, now)
    found += job_changes(*given, most_round)
    found += shorter_forms(*given)
    found += shorter_rounds(*given)
    if len(fleet.nodes) <= MOST_NODES_FOR_MEMORY:
        found += more_memory(fleet, spans, clusters, forecast)
    return sorted(found, key=lambda one: -one.worth)


def most_promising(
    fleet: Fleet, spans: SpanCosts, clusters: Sequence[Cluster], rings: Sequence[Ring], forecast: Forecast
) -> Suggestion | None:
    """Return the better machine or link after which a plan is worth most with the same cuts, however little that is."""
    return max(_better_machines(fleet, spans, clusters, rings, forecast), key=lambda one: one.worth, default=None)


def _better_machines(
    fleet: Fleet, spans: SpanCosts, clusters: Sequence[Cluster], rings: Sequence[Ring], forecast: Forecast
) -> list[Suggestion]:
    """Return what a better machine or link at what limits each cluster, or averaging, brings."""
    now = forecast.prediction
    fastest = sorted(range(len(clusters)), key=lambda i: -now.clusters[i].samples_per_s)
    tried = [i for i in fastest if _may_gain(fleet, spans, clusters, forecast, i)]
    changes = [
        (changed, words, f"{clusters[index].name}: {forecast.own_words[index]}", index)
        for index in sorted(tried if len(clusters) <= MANY else tried[:TRIED])
        for changed, words in _changes(fleet, clusters[index], forecast.own_limits[index])
    ]
    if any(limit.kind == "averaging" for limit in forecast.limits):
        changes += _averaging_changes(fleet, spans, clusters, rings, forecast)
    found = []
    for changed, words, holds_up, index in {change[1]: change for change in changes}.values():
        made = predict(changed, spans, clusters, rings).prediction
        found.append(Suggestion(words, made.samples_per_s, made.objective, index, (changed, spans.workload), holds_up))
    return found


def more_memory(fleet: Fleet, spans: SpanCosts, clusters: Sequence[Cluster], forecast: Forecast) -> list[Suggestion]:
    """Return one suggestion for each node that more memory would help: the least of MEMORY_FACTORS that brings most of
    what the largest does, with cuts and window of the node's cluster planned anew, as they are for the memory there is.
    """
    load = averaging_per_s(len(clusters), forecast.prediction.samples_per_s, spans.workload)
    given = fleet, spans, clusters, forecast.prediction.objective, load
    found = [one for index in range(len(clusters)) for one in _more_memory_in(*given, index)]
    return sorted(found, key=lambda one: -one.worth)


def _more_memory_in(
    fleet: Fleet, spans: SpanCosts, clusters: Sequence[Cluster], worth: float, averaging_per_s: float, index: int
) -> Iterator[Suggestion]:
    """Yield the suggestions for the nodes of the cluster of this index, in a plan that is worth so much."""
    cluster = clusters[index]
    names = [stage.node for stage in cluster.stages]

    def made(changed: Fleet) -> tuple[float, float]:
        """Return (worth, samples/s) of the plan with this cluster cut anew."""
        pipeline = plan_pipeline(changed, spans, names, averaging_per_s, len(names), in_order=True)
        if pipeline is None:
            return 0.0, 0.0
        anew = replace(cluster, window=pipeline.window, stages=pipeline.stages)
        every = (*clusters[:index], anew, *clusters[index + 1 :])
        then = predict(changed, spans, every, make_rings(changed, spans, every)).prediction
        return then.objective, then.samples_per_s

    def more(times: float, *of: str) -> Fleet:
        changed = fleet
        for name in of:
            changed = with_memory(changed, name, round(fleet.node(name).memory_bytes * times))
        return changed

    least, most = max(worth, made(fleet)[0]), MEMORY_FACTORS[-1]
    if made(more(most, *names))[0] <= least * (1 + WORTHWHILE):
        return  # it lacks in none of these nodes
    for name in names:
        if made(more(most, name))[0] <= least * (1 + WORTHWHILE):
            continue
        now_gb, sizes = fleet.node(name).memory_bytes / 1e9, []
        for times in MEMORY_FACTORS:
            then, speed = made(changed := more(times, name))
            words = f"{format_rate(now_gb * times)} GB of memory instead of {format_rate(now_gb)} in {name}"
            after, cuts = (changed, spans.workload), f"with {cluster.name} cut anew"
            sizes.append(Suggestion(words, speed, then, index, after, cuts=cuts))
        if (one := most_of(sizes, least)) is not None:
            yield one


def advise(
    fleet: Fleet,
    spans: SpanCosts,
    clusters: Sequence[Cluster],
    rings: Sequence[Ring],
    forecast: Forecast,
    most_round: float = math.inf,
) -> Advice:
    """Return the change that helps most, in one line; where none does, what the fleet waits for."""
    waiting = next((limit.kind for limit in forecast.limits if limit.kind in KEYS), None)
    capped = waiting == "averaging" and is_round_capped(spans.workload, len(clusters), most_round)
    rest = TOO_FEW_ROUNDS if capped else ""
    if found := suggestions(fleet, spans, clusters, rings, forecast, most_round):
        best, holds_up = found[0], next((one.holds_up for one in found if one.holds_up is not None), None)
        if waiting == "averaging" and best.holds_up is None and holds_up and not holds_up.startswith(WAITING):
            holds_up = f"{WAITING}; after that, {holds_up}"
        faster = best.samples_per_s > forecast.prediction.samples_per_s
        return Advice(_line(best, forecast), best.cluster if faster else None, best, holds_up, rest)
    line = "no single machine or link holds the fleet back: with the same cuts, doubling any one gains less than 1%"
    if waiting is None:
        return Advice(line)
    keys = [key for key in KEYS[waiting] if not (capped and key == "average_every")]
    return Advice(f"{line}, and so does another {' or '.join(keys)}", aside=rest)


def with_bottleneck(predicted: Prediction, forecast: Forecast, bottleneck: str | None) -> Prediction:
    """Return the prediction of this forecast with what advice says of the fleet's bottleneck, if anything. Where that
    is a machine or link of a cluster, although clusters wait for averaging now and then, each says what its own is.
    """
    if bottleneck is None:
        return predicted
    clusters = predicted.clusters
    if not bottleneck.startswith(WAITING):
        own = zip(clusters, forecast.own_words, strict=True)
        clusters = tuple(replace(cluster, bottleneck=words) for cluster, words in own)
    return replace(predicted, bottleneck=bottleneck, clusters=clusters)


def _line(best: Suggestion, forecast: Forecast) -> str:
    now = forecast.prediction
    before, after = format_rate(now.samples_per_s), format_rate(best.samples_per_s)
    worth = f"from {format_rate(now.objective)} to {format_rate(best.worth)}"
    if best.samples_per_s == now.samples_per_s:
        return f"{best.words} would raise what the plan is worth {worth} samples/s, at the same speed"
    return f"{best.words} would raise the fleet from {before} to {after} samples/s {best.cuts} (worth {worth})"


def _may_gain(fleet: Fleet, spans: SpanCosts, clusters: Sequence[Cluster], forecast: Forecast, index: int) -> bool:
    """Say whether a cluster could gain enough: were everything in it twice as good, it would be at most twice as fast
    as it is without averaging.
    """
    cluster, now = clusters[index], forecast.prediction
    if any(fleet.node(stage.node).host is not None for stage in cluster.stages):
        return True  # its uplink may be other clusters', too
    most = 2 * timed(fleet, spans, cluster.stages, 0.0).samples_per_s - now.clusters[index].samples_per_s
    counted = staleness_factor(cluster.window, len(cluster.stages), spans.workload)
    counted *= fleet.rules.presence_of(stage.node for stage in cluster.stages)
    return most * counted * averaging_factor(len(clusters), spans.workload) > WORTHWHILE * now.objective


def _changes(fleet: Fleet, cluster: Cluster, limit: ClusterLimit) -> list[tuple[Fleet, str]]:
    """Return what limits a cluster made twice as good, with words; where it waits for its flush or its round trip, each
    thing of its slowest node, and of a round trip its longest hop.
    """
    node = fleet.node(limit.node)
    if limit.kind == "compute":
        return [_faster(fleet, node.name)]
    if limit.kind == "uplink":
        return [_faster_uplink(fleet, node.name)]
    if limit.kind == "downlink":
        return [_faster_downlink(fleet, node.name)]
    if limit.kind == "link" and limit.peer is not None:
        return [_faster_link(fleet, node.name, limit.peer)]
    hops = [fleet.link(a.node, b.node) for a, b in itertools.pairwise(cluster.stages)]
    if limit.kind not in ("round trip", "flush") or not hops:
        return []
    found = [_faster(fleet, node.name), _faster_uplink(fleet, node.name), _faster_downlink(fleet, node.name)]
    if limit.kind == "round trip":
        slowest = max(hops, key=lambda link: link.latency_s)
        words = f"halving the latency between {slowest.a} and {slowest.b}"
        found.append((with_link(fleet, slowest.a, slowest.b, latency=0.5), words))
    return found


def _averaging_changes(
    fleet: Fleet, spans: SpanCosts, clusters: Sequence[Cluster], rings: Sequence[Ring], forecast: Forecast
) -> list[tuple[Fleet, str, str, int]]:
    """Return the changes of what averaging passes through: of each host's uplink, downlink and busiest link, and of
    everything at the node where averaging starves. Each is (fleet, words, what it holds up, cluster).
    """
    place = {(c.name, s): (stage.node, i) for i, c in enumerate(clusters) for s, stage in enumerate(c.stages)}
    out = dict.fromkeys((host_key(fleet, node) for node, _ in place.values()), 0.0)
    into = dict(out)
    hops: dict[tuple[tuple[str, int], tuple[str, int]], float] = {}
    for ring in ring_traffic(spans, clusters, rings):
        for sender, receiver in ring.hops:
            here, there = place[sender], place[receiver]
            if here[0] == there[0] or fleet.same_host(here[0], there[0]):
                continue
            out[host_key(fleet, here[0])] += ring.parameter_bytes
            into[host_key(fleet, there[0])] += ring.parameter_bytes
            seconds = ring.parameter_bytes / fleet.flow_bytes_per_s(here[0], there[0])
            hops[here, there] = max(seconds, hops.get((here, there), 0.0))
    if not hops:
        return []
    at = list(place.values())
    up = max(at, key=lambda one: out[host_key(fleet, one[0])] / fleet.node(one[0]).up_bytes_per_s)
    down = max(at, key=lambda one: into[host_key(fleet, one[0])] / fleet.node(one[0]).down_bytes_per_s)
    (a, of), (b, _) = max(hops, key=lambda hop: hops[hop])
    starved = next(limit.node for limit in forecast.limits if limit.kind == "averaging")
    where = next(index for name, index in at if name == starved)
    little, own = "has too little room", forecast.own_limits[where]
    is_slow = own.kind == "compute" and own.node == starved
    slow = f"{clusters[where].name}: {forecast.own_words[where]}" if is_slow else forecast.prediction.bottleneck
    return [
        (*_faster(fleet, starved), slow, where),
        (*_faster_uplink(fleet, starved), f"{WAITING}, for which {starved}'s uplink {little}", where),
        (*_faster_downlink(fleet, starved), f"{WAITING}, for which {starved}'s downlink {little}", where),
        (*_faster_uplink(fleet, up[0]), f"{WAITING}, for which {up[0]}'s uplink {little}", up[1]),
        (*_faster_downlink(fleet, down[0]), f"{WAITING}, for which {down[0]}'s downlink {little}", down[1]),
        (*_faster_link(fleet, a, b), f"{WAITING}, for which the link from {a} to {b} {little}", of),
    ]


def _faster(fleet: Fleet, name: str) -> tuple[Fleet, str]:
    return with_speed(fleet, name, 2 * fleet.node(name).flops_per_s), f"doubling {name}'s speed"


def _faster_uplink(fleet: Fleet, name: str) -> tuple[Fleet, str]:
    words = f"doubling {name}'s uplink to {format_rate(fleet.node(name).up_bytes_per_s * 16e-6)} Mbit/s"
    return with_host(fleet, name, up=2.0), words


def _faster_downlink(fleet: Fleet, name: str) -> tuple[Fleet, str]:
    words = f"doubling {name}'s downlink to {format_rate(fleet.node(name).down_bytes_per_s * 16e-6)} Mbit/s"
    return with_host(fleet, name, down=2.0), words


def _faster_link(fleet: Fleet, a: str, b: str) -> tuple[Fleet, str]:
    return with_link(fleet, a, b, rate=2.0), f"doubling the rate between {a} and {b}"


def longer_hours(
    fleet: Fleet, spans: SpanCosts, clusters: Sequence[Cluster], predicted: Prediction
) -> list[Suggestion]:
    """Return all suggestions of longer hours that are worthwhile."""
    if not fleet.rules.count_hours:
        return []
    work, found = spans.workload, []
    for index, (cluster, speed) in enumerate(zip(clusters, predicted.clusters, strict=True)):
        hours = {stage.node: fleet.node(stage.node).hours for stage in cluster.stages}
        now = part_of_day(common_hours(hours.values()))
        a_day = (
            speed.samples_per_s
            * staleness_factor(cluster.window, len(cluster.stages), work)
            * averaging_factor(len(clusters), work)
        )
        for stated in sorted(set(hours.values()) - {ALL_DAY}):
            names = [name for name, own in hours.items() if own == stated]
            then = part_of_day(common_hours(own for own in hours.values() if own != stated))
            gain = (then - now) * a_day
            if gain > WORTHWHILE * predicted.objective:
                words = f"{_listed(names)} being there all day instead of {hours_to(stated)} UTC"
                after = (_all_day(fleet, names), work)
                found.append(Suggestion(words, predicted.samples_per_s, predicted.objective + gain, index, after))
    return found


def _all_day(fleet: Fleet, names: Sequence[str]) -> Fleet:
    return replace(fleet, nodes=tuple(replace(n, hours=ALL_DAY) if n.name in names else n for n in fleet.nodes))


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def with_memory(fleet: Fleet, name: str, memory_bytes: int) -> Fleet:
    """Return the fleet with that much memory at this node."""
    nodes = tuple(replace(n, memory_bytes=memory_bytes) if n.name == name else n for n in fleet.nodes)
    return replace(fleet, nodes=nodes)


def with_speed(fleet: Fleet, name: str, flops_per_s: float) -> Fleet:
    """Return the fleet with that speed at this node."""
    nodes = tuple(replace(n, flops_per_s=flops_per_s) if n.name == name else n for n in fleet.nodes)
    return replace(fleet, nodes=nodes)


def with_host(fleet: Fleet, name: str, *, up: float = 1.0, down: float = 1.0) -> Fleet:
    """Return the fleet with the links of that node, and of all that share its host, `up` and `down` times as fast."""
    key = host_key(fleet, name)
    nodes = tuple(
        replace(n, up_bytes_per_s=n.up_bytes_per_s * up, down_bytes_per_s=n.down_bytes_per_s * down)
        if host_key(fleet, n.name) == key
        else n
        for n in fleet.nodes
    )
    return replace(fleet, nodes=nodes)


def with_link(fleet: Fleet, a: str, b: str, *, latency: float = 1.0, rate: float = 1.0) -> Fleet:
    """Return the fleet with `latency` times the latency, and `rate` times the rate, between these two nodes."""
    old = fleet.link(a, b)
    new = Link(old.a, old.b, old.latency_s * latency, old.bytes_per_s * rate)
    others = tuple(link for link in fleet.links if {link.a, link.b} != {a, b})
    return replace(fleet, links=(*others, new))
