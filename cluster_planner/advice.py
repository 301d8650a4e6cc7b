"""What one change would help most.

Decides by trying: for each cluster the machine or link that limits it is made twice as good, everything else
of the plan stays, and the whole is predicted again. The change that gains the fleet the most samples/s is the
advice. Of more than MANY clusters only the TRIED fastest are looked at: what is twice as good gains no cluster more
than its own rate.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cluster_planner.fleet import Fleet, Link
from cluster_planner.pipeline import plan_pipeline
from cluster_planner.plan import Cluster, Ring
from cluster_planner.predict import Forecast, Limit, predict
from cluster_planner.spans import SpanCosts
from cluster_planner.timing import host_key
from cluster_planner.words import rate

WORTHWHILE = 0.01
"""Gains below this fraction are not worth a line of advice."""

MANY, TRIED = 12, 3

MEMORY_FACTORS = (1.25, 1.5, 2.0)
MOST_OF = 0.9


@dataclass(frozen=True)
class Suggestion:
    """One change, what the fleet would make with it, and the index of the cluster it is about."""

    words: str
    samples_per_s: float
    cluster: int


def suggestions(
    fleet: Fleet, spans: SpanCosts, clusters: Sequence[Cluster], rings: Sequence[Ring], forecast: Forecast
) -> list[Suggestion]:
    """Changes of what limits each cluster, that are worthwhile with the same cuts; the one that gains most first."""
    now = forecast.prediction.samples_per_s
    fastest = sorted(range(len(clusters)), key=lambda i: -forecast.prediction.clusters[i].samples_per_s)
    tried = set(fastest if len(clusters) <= MANY else fastest[:TRIED])
    found = [
        Suggestion(words, predict(changed, spans, clusters, rings).prediction.samples_per_s, index)
        for index, (cluster, limit) in enumerate(zip(clusters, forecast.limits, strict=True))
        if index in tried
        for changed, words in _changes(fleet, cluster, limit)
    ]
    worthwhile = [one for one in found if one.samples_per_s > now * (1 + WORTHWHILE)]
    return sorted(worthwhile, key=lambda one: -one.samples_per_s)


def more_memory(
    fleet: Fleet, spans: SpanCosts, clusters: Sequence[Cluster], forecast: Forecast, averaging_per_s: float
) -> list[Suggestion]:
    """For each node that more memory would help, how much: the least of MEMORY_FACTORS that brings most of what the
    largest does, with cuts and window of its cluster planned anew.
    """
    total, found = forecast.prediction.samples_per_s, []
    for index, cluster in enumerate(clusters):
        names = [stage.node for stage in cluster.stages]

        def made(changed: Fleet, names: Sequence[str] = names) -> float:
            pipeline = plan_pipeline(changed, spans, names, averaging_per_s, len(names), in_order=True)
            return 0.0 if pipeline is None else pipeline.samples_per_s

        now = made(fleet)
        for name in names:
            memory = fleet.node(name).memory_bytes
            with_it = {factor: made(_with_memory(fleet, name, round(memory * factor))) for factor in MEMORY_FACTORS}
            gain = max(with_it.values()) - now
            if gain > WORTHWHILE * total:
                factor = next(factor for factor, rate in with_it.items() if rate - now >= MOST_OF * gain)
                words = f"{memory * factor / 1e9:.3g} GB of memory instead of {memory / 1e9:.3g} in {name}"
                found.append(Suggestion(words, total + with_it[factor] - now, index))
    return sorted(found, key=lambda one: -one.samples_per_s)


def advise(
    fleet: Fleet, spans: SpanCosts, clusters: Sequence[Cluster], rings: Sequence[Ring], forecast: Forecast
) -> tuple[str, int]:
    """One line, and the index of the cluster it is about."""
    now = forecast.prediction.samples_per_s
    if best := suggestions(fleet, spans, clusters, rings, forecast)[:1]:
        then = rate(best[0].samples_per_s)
        line = f"{best[0].words} would raise the fleet from {rate(now)} to {then} samples/s with the same cuts"
        return line, best[0].cluster
    if any(limit.kind == "averaging" for limit in forecast.limits):
        return "a larger average_every would help most: the clusters wait for their averaging", 0
    if any(limit.kind == "round trip" for limit in forecast.limits):
        return "a larger max_staleness or update_every would help most: pipelines wait for their round trip", 0
    if any(limit.kind == "flush" for limit in forecast.limits):
        return "schedule async would help most, or a larger update_every: pipelines idle at each update's flush", 0
    return "no single machine or link holds the fleet back: doubling any one gains less than 1 %", 0


def _changes(fleet: Fleet, cluster: Cluster, limit: Limit) -> list[tuple[Fleet, str]]:
    node = fleet.node(limit.node)
    if limit.kind == "compute":
        return [(_with_node(fleet, node.name, flops_per_s=2 * node.flops_per_s), f"doubling {node.name}'s speed")]
    if limit.kind == "uplink":
        words = f"doubling {node.name}'s uplink to {node.up_bytes_per_s * 16e-6:.4g} Mbit/s"
        return [(_with_host(fleet, node.name, up=2.0, down=1.0), words)]
    if limit.kind == "downlink":
        words = f"doubling {node.name}'s downlink to {node.down_bytes_per_s * 16e-6:.4g} Mbit/s"
        return [(_with_host(fleet, node.name, up=1.0, down=2.0), words)]
    if limit.kind == "link" and limit.peer is not None:
        words = f"doubling the rate between {node.name} and {limit.peer}"
        return [(_with_link(fleet, node.name, limit.peer, latency=1.0, rate=2.0), words)]
    if limit.kind == "round trip":
        names = [stage.node for stage in cluster.stages]
        hops = [fleet.link(a, b) for a, b in itertools.pairwise(names)]
        if not hops:
            return []
        slowest = max(hops, key=lambda link: link.latency_s)
        words = f"halving the latency between {slowest.a} and {slowest.b}"
        return [(_with_link(fleet, slowest.a, slowest.b, latency=0.5, rate=1.0), words)]
    return []


def _with_memory(fleet: Fleet, name: str, memory_bytes: int) -> Fleet:
    return replace(
        fleet, nodes=tuple(replace(n, memory_bytes=memory_bytes) if n.name == name else n for n in fleet.nodes)
    )


def _with_node(fleet: Fleet, name: str, flops_per_s: float) -> Fleet:
    nodes = tuple(replace(n, flops_per_s=flops_per_s) if n.name == name else n for n in fleet.nodes)
    return replace(fleet, nodes=nodes)


def _with_host(fleet: Fleet, name: str, *, up: float, down: float) -> Fleet:
    key = host_key(fleet, name)
    nodes = tuple(
        replace(n, up_bytes_per_s=n.up_bytes_per_s * up, down_bytes_per_s=n.down_bytes_per_s * down)
        if host_key(fleet, n.name) == key
        else n
        for n in fleet.nodes
    )
    return replace(fleet, nodes=nodes)


def _with_link(fleet: Fleet, a: str, b: str, *, latency: float, rate: float) -> Fleet:
    old = fleet.link(a, b)
    new = Link(old.a, old.b, old.latency_s * latency, old.bytes_per_s * rate)
    others = tuple(link for link in fleet.links if {link.a, link.b} != {a, b})
    return replace(fleet, links=(*others, new))
