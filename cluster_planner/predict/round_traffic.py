"""What a round of averaging sends, and how long it takes by itself.

In: a fleet, costs, clusters, rings, and spares that follow them. Out: the exchanges of all rings, the bytes of each
node, the seconds of each ring and of the round (steady_state.RoundTimes).
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from cluster_planner.inputs.fleet import Fleet
from cluster_planner.inputs.spans import Floats, SpanCosts
from cluster_planner.plan import Cluster, Ring, Spare
from cluster_planner.predict.steady_state import RoundTimes
from cluster_planner.rings import Exchange, RingTraffic, exchange_of

MOST_LOOKED_AT = 32
"""Of rings of more members all that is slow is taken to be still to come when a hop was held up."""


def exchanges_of(
    fleet: Fleet, spans: SpanCosts, clusters: Sequence[Cluster], rings: Sequence[RingTraffic]
) -> list[Exchange]:
    """Return the exchanges of all rings in which anything is sent."""
    stages = {cluster.name: cluster.stages for cluster in clusters}
    return [
        exchange_of(
            fleet,
            [stages[name][index].node for name, index in ring.members],
            ring.elements,
            spans.workload.averaged_number_bytes,
            each=spans.workload.robust_averaging,
            hierarchical=spans.workload.hierarchical_averaging,
        )
        for ring in rings
        if len(ring.members) > 1
    ]


def followed_by(
    fleet: Fleet, spans: SpanCosts, clusters: Sequence[Cluster], rings: Sequence[Ring], spares: Sequence[Spare]
) -> list[Exchange]:
    """Return what members of rings send to those who follow them: an average of each ring, which they divide among
    them, for each member of it that a spare shadows, since it has a process for each. It travels exactly. No round
    waits for it, so that it takes of the uplinks only, and of the downlink of a host on which stages run, too.
    """
    stages = {cluster.name: cluster.stages for cluster in clusters}
    number_of, found = fleet.arrays.number_of, []
    for spare in spares:
        beside = (stage.node for each in clusters for stage in each.stages if fleet.same_host(stage.node, spare.node))
        receiver = number_of[next(beside, spare.node)]
        for ring in rings:
            times = len(set(ring.members) & set(spare.shadows))
            if times > 0:
                nodes = [stages[name][index].node for name, index in ring.members]
                pairs = np.array([number_of[name] * len(fleet.nodes) + receiver for name in nodes])
                parts = np.full(len(nodes), times * spans.parameter_bytes(*ring.units) / len(nodes))
                found.append(Exchange(pairs, parts, 0 * parts, 0 * parts, nodes[0], 0.0, 0.0, 0.0))
    return found


def averaged_by_node(fleet: Fleet, exchanges: Sequence[Exchange]) -> tuple[Floats, Floats]:
    """Return the bytes that each node of the fleet sends to other hosts in a round, and those that it receives."""
    count = len(fleet.nodes)
    if not exchanges:
        return np.zeros(count), np.zeros(count)
    host = hosts_of(fleet)
    senders, receivers = np.divmod(np.concatenate([exchange.pairs for exchange in exchanges]), count)
    sent_bytes = np.concatenate([exchange.sent_bytes for exchange in exchanges])
    sent_bytes = np.where(host[senders] != host[receivers], sent_bytes, 0.0)
    out = np.bincount(senders, weights=sent_bytes, minlength=count).astype(np.float64)
    return out, np.bincount(receivers, weights=sent_bytes, minlength=count).astype(np.float64)


def hosts_of(fleet: Fleet) -> NDArray[np.int64]:
    """Return a number of each node's host; a node by itself has one of its own."""
    of, count = fleet.arrays.host, len(fleet.nodes)
    return np.where(of < 0, count + np.arange(count), of)


def held_rings_s(exchanges: Sequence[Exchange], nodes: int) -> tuple[Floats, Floats]:
    """Return, of each node of a fleet of so many, what is left of its slowest ring when a hop out of it, and one into
    it, goes on that was held up since the ring began.

    A hop passes on what the one before has brought. So of the 2·(n − 1) pieces that each sends, the hop that is d
    further has sent d by then. In a direct exchange nobody waits for another one.
    """
    out_s, into_s = np.zeros(nodes), np.zeros(nodes)
    for exchange in exchanges:
        senders, receivers = np.divmod(exchange.pairs, nodes)
        members = len(senders)
        if exchange.way_s == 0 or not np.array_equal(receivers, np.roll(senders, -1)):
            continue
        hop_s = exchange.taken_s
        if members <= MOST_LOOKED_AT:
            further = np.arange(members)
            left = 1 - further / (2 * (members - 1))
            hop_s = (hop_s[(further[:, None] + further) % members] * left).max(axis=1)
        else:
            hop_s = np.full(members, float(hop_s.max()))
        np.maximum.at(out_s, senders, hop_s)
        np.maximum.at(into_s, receivers, hop_s)
    return out_s, into_s


def times_of_rounds(exchanges: Sequence[Exchange]) -> RoundTimes:
    """Return what a round of these exchanges takes beside the hosts' links; a lone cluster's has none."""
    if not exchanges:
        return RoundTimes(0.0, 0.0, 0.0)
    busy_s, latency_s, _ = by_pair(exchanges)
    sending_s = max(max(exchange.sending_s for exchange in exchanges), float(busy_s.max()))
    last_hop_s = max(0.0, float((busy_s + latency_s).max()) - sending_s)
    stalled_s = max(exchange.sending_s + exchange.stalls_s for exchange in exchanges)
    return RoundTimes(
        sending_s,
        last_hop_s,
        max(exchange.way_s for exchange in exchanges),
        max(0.0, stalled_s - sending_s - last_hop_s),
    )


def busiest_pair(exchanges: Sequence[Exchange], nodes: int) -> tuple[int, int]:
    """Return the sender and the receiver, by number in a fleet of so many nodes, whose link is busy for the longest
    time in a round.
    """
    busy_s, _, pairs = by_pair(exchanges)
    return divmod(int(pairs[int(busy_s.argmax())]), nodes)


def by_pair(exchanges: Sequence[Exchange]) -> tuple[Floats, Floats, NDArray[np.int64]]:
    """Return, of each pair of nodes, for how long the link between them is busy in a round of all these exchanges, its
    latency, and its number (`Exchange.pairs`). Rings that have two neighbours in common share their link.
    """
    pairs = np.concatenate([exchange.pairs for exchange in exchanges])
    taken_s = np.concatenate([exchange.taken_s for exchange in exchanges])
    latency_s = np.concatenate([exchange.latency_s for exchange in exchanges])
    numbers, first, place = np.unique(pairs, return_index=True, return_inverse=True)
    return np.bincount(place, weights=taken_s).astype(np.float64), latency_s[first], numbers
