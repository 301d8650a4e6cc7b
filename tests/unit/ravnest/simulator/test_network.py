"""Messages over shared uplinks and downlinks, by hand."""

from collections.abc import Mapping

from ravnest.simulator.clock import VirtualClock
from ravnest.simulator.fleet import VirtualCluster, VirtualFleet, VirtualNode, VirtualStage
from ravnest.simulator.network import VirtualNetwork
from ring_allreduce.transport import Lane, LinkShape

STAGE = VirtualStage(0.1, 0.2)


def network(
    node_of: Mapping[str, str] | None = None, **nodes: VirtualNode
) -> tuple[VirtualClock, VirtualNetwork, list[tuple[str, float]]]:
    """Stages c0.s0, c0.s1 and c0.s2. They lie on the `nodes` in this order, unless `node_of` says otherwise."""
    clock = VirtualClock()
    fleet = VirtualFleet(
        clusters=(VirtualCluster("c0", 4, (STAGE,) * 3),),
        update_every=2,
        max_staleness=1,
        default_link=LinkShape(1e6, 0.01),
        nodes=nodes,
        node_of=dict(zip(("c0.s0", "c0.s1", "c0.s2"), nodes, strict=False)) if node_of is None else node_of,
    )
    arrived: list[tuple[str, float]] = []
    return clock, VirtualNetwork(fleet, clock), arrived


def test_a_lone_link_takes_its_bytes_and_its_latency() -> None:
    clock, net, arrived = network()
    for word in ("first", "second"):
        net.path("c0.s0", "c0.s1").transmit(Lane.PIPELINE, 100_000, lambda w: arrived.append((w, clock.now_s)), word)
    clock.run()
    assert [(word, round(at_s, 6)) for word, at_s in arrived] == [("first", 0.11), ("second", 0.21)]
    assert net.bytes_sent == {Lane.PIPELINE: 200_000, Lane.BULK: 0}


def test_two_peers_share_an_uplink() -> None:
    clock, net, arrived = network(a=VirtualNode(1e5, 1e9), b=VirtualNode(1e9, 1e9), c=VirtualNode(1e9, 1e9))
    for peer in ("c0.s1", "c0.s2"):
        net.path("c0.s0", peer).transmit(Lane.PIPELINE, 100_000, lambda w: arrived.append((w, clock.now_s)), peer)
    clock.run()
    assert [(peer, round(at_s, 6)) for peer, at_s in arrived] == [("c0.s1", 1.01), ("c0.s2", 2.01)]


def test_two_senders_share_a_downlink() -> None:
    clock, net, arrived = network(a=VirtualNode(1e9, 1e9), b=VirtualNode(1e9, 1e5), c=VirtualNode(1e9, 1e9))
    for sender in ("c0.s0", "c0.s2"):
        net.path(sender, "c0.s1").transmit(Lane.PIPELINE, 100_000, lambda w: arrived.append((w, clock.now_s)), sender)
    clock.run()
    # Each comes at 1e6 bytes/s from 0.01 s on; the downlink takes them one after the other.
    assert [(sender, round(at_s, 6)) for sender, at_s in arrived] == [("c0.s0", 1.01), ("c0.s2", 2.01)]


def test_stages_of_one_node_reach_each_other_beside_its_uplink() -> None:
    clock, net, arrived = network({"c0.s0": "a", "c0.s1": "a"}, a=VirtualNode(1.0, 1.0))
    net.path("c0.s0", "c0.s1").transmit(Lane.PIPELINE, 100_000, lambda w: arrived.append((w, clock.now_s)), "here")
    clock.run()
    assert arrived == [("here", 0.11)]


def test_the_pipeline_overtakes_averaging_that_waits() -> None:
    clock, net, arrived = network()
    for lane, word in ((Lane.BULK, "leaving"), (Lane.BULK, "waiting"), (Lane.PIPELINE, "urgent")):
        net.path("c0.s0", "c0.s1").transmit(lane, 100_000, lambda w: arrived.append((w, clock.now_s)), word)
    clock.run()
    assert [word for word, _ in arrived] == ["leaving", "urgent", "waiting"]


def test_a_node_that_becomes_slower_slows_what_has_not_left() -> None:
    clock, net, arrived = network(a=VirtualNode(1e6, 1e9), b=VirtualNode(1e9, 1e9))
    clock.at(0.05, lambda _: net.change_node("a", 1e5, 1e9), None)
    for word in ("left", "waits"):
        net.path("c0.s0", "c0.s1").transmit(Lane.PIPELINE, 100_000, lambda w: arrived.append((w, clock.now_s)), word)
    clock.run()
    assert [(word, round(at_s, 6)) for word, at_s in arrived] == [("left", 0.11), ("waits", 1.11)]
