"""What one change would help most.

Decides by trying: for each cluster the machine or link that limits it is made twice as good, everything else
of the plan stays, and the whole is predicted again. The change that gains the fleet the most samples/s is the
advice.
"""

import itertools
from collections.abc import Sequence
from dataclasses import replace

from cluster_planner.fleet import Fleet, Link
from cluster_planner.plan import Cluster, Ring
from cluster_planner.predict import Forecast, Limit, predict
from cluster_planner.spans import SpanCosts
from cluster_planner.timing import host_key
from cluster_planner.words import rate

WORTHWHILE = 0.01
"""Gains below this fraction are not worth a line of advice."""


def advise(
    fleet: Fleet, spans: SpanCosts, clusters: Sequence[Cluster], rings: Sequence[Ring], forecast: Forecast
) -> tuple[str, int]:
    """One line, and the index of the cluster it is about."""
    now = forecast.prediction.samples_per_s
    best: tuple[float, str, int] = (now * (1 + WORTHWHILE), "", 0)
    for index, (cluster, limit) in enumerate(zip(clusters, forecast.limits, strict=True)):
        for changed, words in _changes(fleet, cluster, limit):
            then = predict(changed, spans, clusters, rings).prediction.samples_per_s
            if then > best[0]:
                best = (then, words, index)
    if best[1]:
        then, words, index = best
        return f"{words} would raise the fleet from {rate(now)} to {rate(then)} samples/s with the same cuts", index
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
