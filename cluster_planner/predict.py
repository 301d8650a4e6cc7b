"""What a plan will do: samples per second, memory, and what limits it.

Decides how the clusters' pipelines share uplinks with the averaging between them (design §4.5). A round moves
2·(m − 1)/m of a segment's bytes out of and into each of its m members, once per `average_every` samples of
the fleet. With the fleet at R samples/s, what a host's uplink has left for the pipeline is `up − averaged·R /
average_every`, so

    T_c(R) = max over stages of compute, flows, host bytes / left uplink, host bytes / left downlink
    R      = Σ micro_batch / period_c(T_c(R))           (the right side falls as R rises: one solution, by
    bisection)

Where window or staleness limit what is in flight, or nearly, period_c is at least what a walk of the pipeline takes
(circulating.py), with what averaging leaves of uplinks at the R found without it. R is at most what the rings
themselves can carry, with `max_lag` rounds on their way at once and at most MOST_AVERAGING of any link. Where nodes of
one host serve several clusters, each cluster is timed as if all had its period, which is never too fast.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from cluster_planner.circuits import Circuit, circuits
from cluster_planner.circulating import no_faster_than_walked
from cluster_planner.fleet import Fleet
from cluster_planner.objective import averaging_factor, staleness_factor
from cluster_planner.plan import Cluster, ClusterPrediction, Prediction, Ring, StagePrediction
from cluster_planner.spans import SpanCosts
from cluster_planner.steady import Occupancy, Pipelines
from cluster_planner.timing import Load, by_host, flushed_s, loads_of, round_trip_s

MOST_AVERAGING = 0.9
"""The part of a link that averaging can have: the pipeline's lane goes first."""


@dataclass(frozen=True)
class Limit:
    """What limits a cluster: "compute", "uplink", "downlink", "link", "round trip", "flush" or "averaging".

    `node` (and `peer`, for a link) say where.
    """

    kind: str
    node: str
    peer: str | None = None


@dataclass(frozen=True)
class Forecast:
    """A prediction without advice, each cluster's limit, and the part of a round that is its longest ring's latency."""

    prediction: Prediction
    limits: tuple[Limit, ...]
    latency_s: float = 0.0


@dataclass(frozen=True)
class _Pipe:
    cluster: Cluster
    loads: tuple[Load, ...]
    round_trip_s: float
    flushed_s: float


@dataclass(frozen=True)
class _Traffic:
    """Per node: bytes per micro-batch of the pipelines, and per round of the averaging, through its host's
    links.
    """

    up: Mapping[str, float]
    down: Mapping[str, float]
    averaged_up: Mapping[str, float]
    averaged_down: Mapping[str, float]


def predict(fleet: Fleet, spans: SpanCosts, clusters: Sequence[Cluster], rings: Sequence[Ring]) -> Forecast:
    """Time and memory of every stage, the speed of every cluster and of the fleet."""
    work = spans.workload
    pipes = [_pipe(fleet, spans, cluster) for cluster in clusters]
    moved = circuits(spans, clusters, rings)
    traffic = _traffic(fleet, spans, pipes, moved)
    averaging_s, latency_s, carried = _averaging(fleet, spans, clusters, moved, traffic)
    stages = _pipelines(fleet, pipes, traffic)
    fleet_rate = stages.steady_rate(work)
    walked = no_faster_than_walked(fleet, spans, clusters, stages, min(fleet_rate, carried))
    if walked is not stages:
        stages, fleet_rate = walked, walked.steady_rate(work)
    waits = carried < fleet_rate * (1 - 1e-9)
    fleet_rate = min(fleet_rate, carried)
    occupied = stages.occupancy(fleet_rate, work)
    periods = stages.periods_s(fleet_rate, work).tolist()
    rates = [work.micro_batch / period for period in periods]
    scale = fleet_rate / sum(rates) if waits else 1.0
    rates = [rate * scale for rate in rates]
    limits, predictions = [], []
    for pipe, first, period, rate in zip(pipes, stages.first.tolist(), periods, rates, strict=True):
        limit = _limit(spans, pipe, occupied, first, period, waits=waits)
        limits.append(limit)
        predictions.append(_cluster_prediction(fleet, spans, pipe, traffic, (rate, sum(rates)), limit))
    total = sum(rates)
    factor = averaging_factor(len(clusters), work)
    worth = sum(
        rate * staleness_factor(c.window, len(c.stages), work) * fleet.rules.presence_of(s.node for s in c.stages)
        for rate, c in zip(rates, clusters, strict=True)
    )
    slowest = max(range(len(rates)), key=lambda i: predictions[i].bottleneck_s)
    return Forecast(
        Prediction(
            samples_per_s=total,
            averaging_s=averaging_s,
            objective=worth * factor,
            efficiency=worth * factor / total,
            bottleneck=f"{clusters[slowest].name}: {predictions[slowest].bottleneck}",
            advice="",
            clusters=tuple(predictions),
        ),
        tuple(limits),
        latency_s,
    )


def _pipe(fleet: Fleet, spans: SpanCosts, cluster: Cluster) -> _Pipe:
    given = (fleet, spans, cluster.stages)
    return _Pipe(cluster, loads_of(*given), round_trip_s(*given), flushed_s(*given))


def _traffic(fleet: Fleet, spans: SpanCosts, pipes: Sequence[_Pipe], rings: Sequence[Circuit]) -> _Traffic:
    node_of = {(p.cluster.name, s): stage.node for p in pipes for s, stage in enumerate(p.cluster.stages)}
    out = dict.fromkeys(node_of.values(), 0.0)
    into = dict(out)
    for ring in rings:
        amount = _ring_bytes(spans, ring)
        for sender, receiver in ring.hops:
            a, b = node_of[sender], node_of[receiver]
            if a != b and not fleet.same_host(a, b):
                out[a] += amount
                into[b] += amount
    loads = [(s.node, load) for p in pipes for s, load in zip(p.cluster.stages, p.loads, strict=True)]
    return _Traffic(
        up=by_host(fleet, [(node, load.up_bytes) for node, load in loads]),
        down=by_host(fleet, [(node, load.down_bytes) for node, load in loads]),
        averaged_up=by_host(fleet, list(out.items())),
        averaged_down=by_host(fleet, list(into.items())),
    )


def _pipelines(fleet: Fleet, pipes: Sequence[_Pipe], traffic: _Traffic) -> Pipelines:
    names = [stage.node for pipe in pipes for stage in pipe.cluster.stages]
    loads = [load for pipe in pipes for load in pipe.loads]
    return Pipelines(
        compute_s=np.array([load.compute_s for load in loads]),
        send_s=np.array([load.send_s for load in loads]),
        up_bytes=np.array([traffic.up[name] for name in names]),
        down_bytes=np.array([traffic.down[name] for name in names]),
        averaged_up=np.array([traffic.averaged_up[name] for name in names]),
        averaged_down=np.array([traffic.averaged_down[name] for name in names]),
        up_bytes_per_s=np.array([fleet.node(name).up_bytes_per_s for name in names]),
        down_bytes_per_s=np.array([fleet.node(name).down_bytes_per_s for name in names]),
        first=np.cumsum([0, *(len(pipe.loads) for pipe in pipes[:-1])]),
        round_trip_s=np.array([pipe.round_trip_s for pipe in pipes]),
        flushed_s=np.array([pipe.flushed_s for pipe in pipes]),
        window=np.array([pipe.cluster.window for pipe in pipes]),
    )


def _averaging(
    fleet: Fleet, spans: SpanCosts, clusters: Sequence[Cluster], rings: Sequence[Circuit], traffic: _Traffic
) -> tuple[float, float, float]:
    """(seconds of one round on idle links, its latency, the most samples/s for which the rings keep up)."""
    if not any(ring.hops for ring in rings):
        return 0.0, 0.0, float("inf")
    stages = {c.name: c.stages for c in clusters}
    slowest_hop = trip = 0.0
    for ring in rings:
        latencies, members = 0.0, len(ring.members)
        for (a, s), (b, t) in ring.hops:
            sender, receiver = stages[a][s].node, stages[b][t].node
            slowest_hop = max(slowest_hop, _ring_bytes(spans, ring) / fleet.flow_bytes_per_s(sender, receiver))
            latencies += fleet.link(sender, receiver).latency_s
        trip = max(trip, 2 * latencies * (members - 1) / members)
    hosts = [
        max(
            traffic.averaged_up[n] / fleet.node(n).up_bytes_per_s,
            traffic.averaged_down[n] / fleet.node(n).down_bytes_per_s,
        )
        for n in traffic.averaged_up
    ]
    sending = max(slowest_hop, *hosts)
    work = spans.workload
    if sending <= 0:
        return trip, trip, float("inf")
    at_most = min(MOST_AVERAGING / sending, work.max_lag / (sending + trip))
    return sending + trip, trip, work.average_every * at_most


def _ring_bytes(spans: SpanCosts, ring: Circuit) -> float:
    """What each member sends, and receives, in one round."""
    members = len(ring.members)
    moved = spans.workload.averaged_bytes_per_parameter_byte * ring.parameter_bytes
    return 2.0 * (members - 1) / members * moved


def _limit(spans: SpanCosts, pipe: _Pipe, occupied: Occupancy, first: int, period_s: float, *, waits: bool) -> Limit:
    stages = pipe.cluster.stages
    worst = int(occupied.most[first : first + len(stages)].argmax())
    node, at = stages[worst].node, first + worst
    most = occupied.most[at]
    if waits:
        return Limit("averaging", node)
    if period_s > most * (1 + 1e-9):
        return Limit("flush" if spans.workload.is_synchronous else "round trip", node)
    for kind, seconds in (("compute", occupied.compute_s), ("uplink", occupied.up_s), ("downlink", occupied.down_s)):
        if seconds[at] >= most:
            return Limit(kind, node)
    return Limit("link", node, pipe.loads[worst].send_to)


def _cluster_prediction(
    fleet: Fleet, spans: SpanCosts, pipe: _Pipe, traffic: _Traffic, rates: tuple[float, float], limit: Limit
) -> ClusterPrediction:
    """`rates`: samples/s of the cluster and of the fleet."""
    rate, fleet_rate = rates
    work = spans.workload
    rounds = fleet_rate / work.average_every * work.micro_batch / rate
    predicted = []
    stages = pipe.cluster.stages
    for index, (stage, load) in enumerate(zip(stages, pipe.loads, strict=True)):
        name, node = stage.node, fleet.node(stage.node)
        up_s = (traffic.up[name] + traffic.averaged_up[name] * rounds) / node.up_bytes_per_s
        down_s = (traffic.down[name] + traffic.averaged_down[name] * rounds) / node.down_bytes_per_s
        up_s = max(up_s, load.send_s)
        most = max(load.compute_s, up_s, down_s)
        place, window = (index, len(stages)), pipe.cluster.window
        memory = spans.stage_memory_bytes(*stage.units, place, window, recomputes=stage.recomputes)
        if not stage.recomputes and spans.room_to_split(*stage.units, place, window, node.memory_bytes):
            memory += spans.split_bytes(*stage.units)
        predicted.append(StagePrediction(load.compute_s, up_s, down_s, most, memory))
    bottleneck = max(stage.occupancy_s for stage in predicted)
    return ClusterPrediction(
        samples_per_s=rate,
        bottleneck_s=bottleneck,
        round_trip_s=pipe.round_trip_s,
        bottleneck=_words(limit, bottleneck, work.micro_batch / rate, pipe),
        stages=tuple(predicted),
    )


def _words(limit: Limit, bottleneck: float, period: float, pipe: _Pipe) -> str:
    each = f"{bottleneck * 1e3:.3g} ms per micro-batch"
    if limit.kind == "averaging":
        return "waits for the averaging between clusters"
    if limit.kind == "flush":
        return f"the flush at each update: its slowest stage is idle {1 - bottleneck / period:.0%} of the time"
    if limit.kind == "round trip":
        trip = f"the round trip of {pipe.round_trip_s * 1e3:.3g} ms"
        return f"{trip}, with {pipe.cluster.window} micro-batches in flight at most"
    if limit.kind == "link":
        return f"the link from {limit.node} to {limit.peer}: {each}"
    return f"{limit.node}'s {'speed' if limit.kind == 'compute' else limit.kind}: {each}"
