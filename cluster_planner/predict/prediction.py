"""What a plan will do: samples per second, memory, and what limits it.

In: a fleet, costs, clusters and rings. Out: a `Forecast`. Pipelines go first on every link, as in a run, so clusters
wait where averaging starves. While nobody waits, each cluster runs as if nothing were averaged:

    T_c    = max over stages of compute, flows, host bytes / uplink, host bytes / downlink
    R      = Σ micro_batch / period_c(T_c),    t = average_every / R from one round's opening to the next

Where window or staleness limit what is in flight, or nearly, period_c is at least what a walk of the pipeline takes
(schedule_walk.py). A round takes the bytes of each host's links that `rings.exchange_of` gives. They fit into what
pipelines leave of t, or clusters come to their lag limit and wait, all of them, until they have fitted: then rounds are
an interval I > t apart, and R·t / I is made (steady_state.py gives I). Where nodes of one host serve several clusters,
each cluster is timed as if all had its period, which is never too fast.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from cluster_planner.formatting import format_rate
from cluster_planner.inputs.fleet import Fleet
from cluster_planner.inputs.model_costs import Workload
from cluster_planner.inputs.spans import Floats, SpanCosts
from cluster_planner.plan import Cluster, ClusterPrediction, Prediction, Ring, Spare, StagePrediction
from cluster_planner.predict.objective import averaging_factor, staleness_factor
from cluster_planner.predict.round_traffic import (
    averaged_by_node,
    busiest_pair,
    by_pair,
    exchanges_of,
    followed_by,
    held_rings_s,
    hosts_of,
    times_of_rounds,
)
from cluster_planner.predict.stage_times import (
    Load,
    flushed_s,
    is_near,
    loads_of,
    round_trip_s,
    window_limited_s,
)
from cluster_planner.predict.steady_state import TOLD_S, Occupancy, Pace, PipelineArrays, RoundTimes
from cluster_planner.rings import Exchange, ring_traffic

LEAST_WAIT = 0.01
"""Clusters that lose less of their speed than this part by waiting for averaging are limited by what they do, since
that is where a gain is to be had.
"""

WAITS_FOR_ROUNDS = "waits for the averaging between clusters"


@dataclass(frozen=True)
class ClusterLimit:
    """What limits a cluster: "compute", "data", "uplink", "downlink", "link", "round trip", "flush" or "averaging".

    `node` (and `peer`, for a link) say where; with "averaging", which any node of the fleet may hold up, at whose links
    it starves or is slowest, or, where clusters wait for one with long updates, what that one's are limited by.
    """

    kind: str
    node: str
    peer: str | None = None


@dataclass(frozen=True)
class Forecast:
    """A prediction without advice, each cluster's limit, and the part of a round that is its longest ring's latency.

    `own_limits` and `own_words`: what limits each cluster while it waits for no round of averaging.
    """

    prediction: Prediction
    limits: tuple[ClusterLimit, ...]
    latency_s: float
    own_limits: tuple[ClusterLimit, ...]
    own_words: tuple[str, ...]


@dataclass(frozen=True)
class PipelineTimes:
    """A cluster with what its stages and its round trip take while nothing else uses its links."""

    cluster: Cluster
    loads: tuple[Load, ...]
    round_trip_s: float
    flushed_s: float


def predict(
    fleet: Fleet,
    spans: SpanCosts,
    clusters: Sequence[Cluster],
    rings: Sequence[Ring],
    spares: Sequence[Spare] = (),
) -> Forecast:
    """Time and memory of every stage, the speed of every cluster and of the fleet. `spares`: those that are warm are
    sent averages.
    """
    work = spans.workload
    pipes = [times_of(fleet, spans, cluster) for cluster in clusters]
    exchanges = exchanges_of(fleet, spans, clusters, ring_traffic(spans, clusters, rings))
    followed = followed_by(fleet, spans, clusters, rings, spares)
    sent = [*exchanges, *followed] if exchanges else []  # a lone cluster's rounds wait for nothing that is sent
    stages = no_faster_than_walked(fleet, spans, clusters, arrays_of(fleet, pipes, sent))
    alone = times_of_rounds(exchanges)
    pace = stages.pace(work, alone, stages.walked_s(work, alone))
    averaging_s, latency_s = _round_s(stages, alone) if exchanges else (0.0, 0.0)
    loaded_s = stages.loaded_s(work, alone, pace) if exchanges else 0.0
    occupied, periods, rates = stages.occupancy(), stages.periods_s(work).tolist(), pace.rates.tolist()
    total, unheld = sum(rates), sum(work.micro_batch / period for period in periods)
    waits = _waits(fleet, stages, pipes, exchanges, pace) if total < unheld * (1 - LEAST_WAIT) else None
    stage_s = _stage_seconds(stages, work, pace)
    own_limits, own_words, predictions = [], [], []
    for pipe, first, period, rate in zip(pipes, stages.first.tolist(), periods, rates, strict=True):
        limit = _limit(spans, pipe, occupied, first, period)
        own_limits.append(limit)
        seconds = [tuple(each[first : first + len(pipe.loads)].tolist()) for each in stage_s]
        predicted = _stages(fleet, spans, pipe, *seconds)
        own_words.append(_words(limit, float(occupied.most[first : first + len(pipe.loads)].max()), period, pipe))
        most, words = max(stage.occupancy_s for stage in predicted), own_words[-1] if waits is None else waits[1]
        predictions.append(ClusterPrediction(rate, most, pipe.round_trip_s, words, predicted))
    worth = worth_of(fleet, work, clusters, rates)
    # What limits the cluster that makes most, as it counts, counts for most.
    most_made = max(range(len(rates)), key=lambda i: value_of(fleet, work, clusters[i], rates[i]))
    of = clusters[most_made].name
    return Forecast(
        Prediction(
            samples_per_s=total,
            averaging_s=averaging_s,
            objective=worth,
            efficiency=worth / total,
            bottleneck=f"{of}: {own_words[most_made]}" if waits is None else f"every cluster {waits[1]}",
            advice="",
            clusters=tuple(predictions),
            loaded_averaging_s=loaded_s,
        ),
        tuple(own_limits) if waits is None else (waits[0],) * len(own_limits),
        latency_s,
        tuple(own_limits),
        tuple(own_words),
    )


def worth_of(fleet: Fleet, work: Workload, clusters: Sequence[Cluster], rates: Sequence[float]) -> float:
    """Return the objective of clusters that make these samples/s."""
    worth = sum(value_of(fleet, work, cluster, rate) for rate, cluster in zip(rates, clusters, strict=True))
    return worth * averaging_factor(len(clusters), work)


def value_of(fleet: Fleet, work: Workload, cluster: Cluster, samples_per_s: float) -> float:
    """Return what a cluster that makes these samples/s adds to the objective, but for averaging."""
    stages = cluster.stages
    presence = fleet.rules.presence_of(stage.node for stage in stages)
    return samples_per_s * staleness_factor(cluster.window, len(stages), work) * presence


def times_of(fleet: Fleet, spans: SpanCosts, cluster: Cluster) -> PipelineTimes:
    """Return the times of one cluster."""
    given = (fleet, spans, cluster.stages)
    return PipelineTimes(cluster, loads_of(*given), round_trip_s(*given), flushed_s(*given))


def arrays_of(fleet: Fleet, pipes: Sequence[PipelineTimes], exchanges: Sequence[Exchange]) -> PipelineArrays:
    """Return the stages of all clusters as arrays, with the bytes that a round of these exchanges adds to each."""
    sites = fleet.arrays
    nodes = np.array([sites.number_of[stage.node] for pipe in pipes for stage in pipe.cluster.stages])
    loads = [load for pipe in pipes for load in pipe.loads]
    host = hosts_of(fleet)
    out, into = averaged_by_node(fleet, exchanges)
    held_s = held_rings_s(exchanges, len(fleet.nodes))
    return PipelineArrays(
        compute_s=np.array([load.compute_s for load in loads]),
        send_s=np.array([load.send_s for load in loads]),
        up_bytes=np.array([load.up_bytes for load in loads]),
        down_bytes=np.array([load.down_bytes for load in loads]),
        averaged_up=out[nodes],
        averaged_down=into[nodes],
        held_up_s=held_s[0][nodes],
        held_down_s=held_s[1][nodes],
        up_bytes_per_s=sites.up_bytes_per_s[nodes],
        down_bytes_per_s=sites.down_bytes_per_s[nodes],
        host=np.unique(host[nodes], return_inverse=True)[1],
        first=np.cumsum([0, *(len(pipe.loads) for pipe in pipes[:-1])]),
        round_trip_s=np.array([pipe.round_trip_s for pipe in pipes]),
        flushed_s=np.array([pipe.flushed_s for pipe in pipes]),
        window=np.array([pipe.cluster.window for pipe in pipes]),
    )


def _round_s(stages: PipelineArrays, alone: RoundTimes) -> tuple[float, float]:
    """Return (seconds of one round on idle links, the part of them that is latency)."""
    up_s = stages.through_host(stages.averaged_up) / stages.up_bytes_per_s
    down_s = stages.through_host(stages.averaged_down) / stages.down_bytes_per_s
    sending_s = max(alone.sending_s, float(up_s.max()), float(down_s.max()))
    averaging_s = max(sending_s + alone.later_s, alone.way_s)
    return averaging_s, max(0.0, averaging_s - sending_s - alone.stalls_s)


def _stage_seconds(stages: PipelineArrays, work: Workload, pace: Pace) -> tuple[Floats, Floats]:
    """Return how long the uplink and the downlink of each stage's host are busy per micro-batch, averaging included."""
    rounds = work.micro_batch / pace.rates / pace.interval_s
    rounds = np.repeat(rounds, np.diff(stages.first, append=len(stages.host)))
    up = stages.through_host(stages.up_bytes) + stages.through_host(stages.averaged_up) * rounds
    down = stages.through_host(stages.down_bytes) + stages.through_host(stages.averaged_down) * rounds
    return np.maximum(up / stages.up_bytes_per_s, stages.send_s), down / stages.down_bytes_per_s


def _waits(
    fleet: Fleet, stages: PipelineArrays, pipes: Sequence[PipelineTimes], exchanges: Sequence[Exchange], pace: Pace
) -> tuple[ClusterLimit, str] | None:
    """Return what all clusters wait for, and in words, or None where none waits."""
    if not pace.waits:
        return None
    nodes = [stage.node for pipe in pipes for stage in pipe.cluster.stages]
    if not exchanges or (pace.joins_last is None and pace.interval_s < 2 * TOLD_S):
        return ClusterLimit("averaging", nodes[0]), "waits for the driver's messages, which open and end each round"
    if pace.waits_at is not None:
        node = nodes[pace.waits_at]
        return ClusterLimit("averaging", node), f"{WAITS_FOR_ROUNDS}, for which {node}'s links have too little room"
    if pace.joins_last is not None:
        pipe, first = pipes[pace.joins_last], int(stages.first[pace.joins_last])
        worst = int(stages.occupancy().most[first : first + len(pipe.loads)].argmax())
        node, of = pipe.cluster.stages[worst].node, pipe.cluster.name
        said = f"{WAITS_FOR_ROUNDS}, which {of} joins once in each of its long updates: {node} is its slowest"
        return ClusterLimit("averaging", node), said
    slowest = max(exchanges, key=lambda exchange: exchange.alone_s)
    if float(by_pair(exchanges)[0].max()) > slowest.alone_s:  # rings share the link of a pair
        sender, receiver = (fleet.names[at] for at in busiest_pair(exchanges, len(fleet.nodes)))
        return ClusterLimit("averaging", sender), f"{WAITS_FOR_ROUNDS}, {_longest_sending(sender, receiver)}"
    senders, receivers = np.divmod(slowest.pairs, len(fleet.nodes))
    if slowest.way_s > slowest.sending_s + slowest.stalls_s:
        far = int(slowest.latency_s.argmax())
        a, b = fleet.names[senders[far]], fleet.names[receivers[far]]
        said = f"in which the latencies on the way around a ring take longest, above all that from {a} to {b}"
        return ClusterLimit("averaging", slowest.slowest), f"{WAITS_FOR_ROUNDS}, {said}"
    own = np.where(senders == fleet.arrays.number_of[slowest.slowest], slowest.taken_s, -1.0)
    receiver = fleet.names[receivers[int(own.argmax())]]
    return (
        ClusterLimit("averaging", slowest.slowest),
        f"{WAITS_FOR_ROUNDS}, {_longest_sending(slowest.slowest, receiver)}",
    )


def _longest_sending(sender: str, receiver: str) -> str:
    return f"in which {sender} takes longest to send its part to {receiver}"


def _limit(spans: SpanCosts, pipe: PipelineTimes, occupied: Occupancy, first: int, period_s: float) -> ClusterLimit:
    stages = pipe.cluster.stages
    worst = int(occupied.most[first : first + len(stages)].argmax())
    node, at = stages[worst].node, first + worst
    most = occupied.most[at]
    if period_s > most * (1 + 1e-9):
        return ClusterLimit("flush" if spans.workload.is_synchronous else "round trip", node)
    for kind, seconds in (("compute", occupied.compute_s), ("uplink", occupied.up_s), ("downlink", occupied.down_s)):
        if seconds[at] >= most:
            load = pipe.loads[worst]
            reads = kind == "compute" and load.reading_s > load.compute_s / 2
            return ClusterLimit("data" if reads else kind, node)
    return ClusterLimit("link", node, pipe.loads[worst].send_to)


def _stages(
    fleet: Fleet, spans: SpanCosts, pipe: PipelineTimes, up_s: Sequence[float], down_s: Sequence[float]
) -> tuple[StagePrediction, ...]:
    predicted = []
    stages, window = pipe.cluster.stages, pipe.cluster.window
    for index, (stage, load, up, down) in enumerate(zip(stages, pipe.loads, up_s, down_s, strict=True)):
        place, most = (index, len(stages)), max(load.compute_s, up, down)
        memory = spans.stage_memory_bytes(*stage.units, place, window, recomputes=stage.recomputes)
        room_bytes = fleet.node(stage.node).room_bytes
        if not stage.recomputes and spans.room_to_split(*stage.units, place, window, room_bytes):
            memory += spans.split_bytes(*stage.units)
        predicted.append(StagePrediction(load.compute_s, up, down, most, memory))
    return tuple(predicted)


def _words(limit: ClusterLimit, bottleneck: float, period: float, pipe: PipelineTimes) -> str:
    each = f"{_time(bottleneck)} per micro-batch"
    if limit.kind == "flush":
        return f"the flush at each update: {limit.node}, the slowest, is idle {1 - bottleneck / period:.0%} of the time"
    if limit.kind == "round trip":
        trip = f"the round trip of {_time(pipe.round_trip_s)}"
        return f"{trip}, with {pipe.cluster.window} micro-batches in flight at most; {limit.node} is its slowest"
    if limit.kind == "link":
        return f"the link from {limit.node} to {limit.peer}: {each}"
    if limit.kind == "data":
        return f"the reading of data in {limit.node}: {each}"
    return f"{limit.node}'s {'speed' if limit.kind == 'compute' else limit.kind}: {each}"


def _time(seconds: float) -> str:
    return f"{format_rate(seconds)} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


def near_its_window(spans: SpanCosts, clusters: Sequence[Cluster], stages: PipelineArrays) -> list[int]:
    """Return the numbers of the clusters that have to be walked, since their round trip counts, or nearly."""
    bottleneck = np.maximum.reduceat(stages.occupancy().most, stages.first)
    several = np.array([len(cluster.stages) > 1 for cluster in clusters])
    near = several & is_near(spans.workload, bottleneck, stages.round_trip_s, stages.window)
    found: list[int] = np.flatnonzero(near).tolist()
    return found


def no_faster_than_walked(
    fleet: Fleet, spans: SpanCosts, clusters: Sequence[Cluster], stages: PipelineArrays
) -> PipelineArrays:
    """Return `stages`, with the walked period as the least of each cluster whose round trip counts, or nearly; the same
    object if there are none.
    """
    if not (near := near_its_window(spans, clusters, stages)):
        return stages
    least_s = stages.flushed_s.copy()
    for at in near:
        least_s[at] = window_limited_s(fleet, spans, clusters[at])
    return replace(stages, flushed_s=least_s)
