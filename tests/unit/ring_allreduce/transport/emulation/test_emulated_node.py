"""What lies between endpoints, with the in-process twin: shared ways up and down, neighbours of one host, nobody's."""

import pytest
import torch

from ring_allreduce.transport.emulation.emulated_node import EmulatedNode
from ring_allreduce.transport.emulation.links import LinkShape, NodeShape
from ring_allreduce.transport.in_process import InProcessNetwork
from ring_allreduce.transport.message import Codec, Message
from ring_allreduce.transport.stats import Lane, Lateness

FAST = LinkShape(1e9, 0.0)
BODY = torch.zeros(100_000, dtype=torch.uint8)


class Note(Message, frozen=True, kw_only=True, tag="note"):
    number: int = 0


def network(links, nodes):
    clock = [0.0]
    net = InProcessNetwork(now=lambda: clock[0], links=links, nodes=nodes)
    ends = {name: net.endpoint(name, Codec([Note])) for name in "abcd"}
    net.connect_all()
    return clock, net, ends


def arrivals(clock, net, ends):
    """(time, receiver, number) of all that is under way."""
    found = []
    while (due_s := net.next_due_s()) is not None:
        clock[0] = due_s
        for name, end in ends.items():
            found += [(round(due_s, 2), name, delivery.message.number) for delivery in end.poll(0.0)]
    return found


def test_all_that_a_node_sends_shares_its_uplink():
    node = NodeShape(1e5, 1e9, {"b": 1e9, "c": 1e9})
    clock, net, ends = network({("a", "b"): FAST, ("a", "c"): FAST}, {"a": node})
    for number in range(4):
        ends["a"].send("bc"[number % 2], Lane.BULK, Note(number=number), [BODY])
    assert arrivals(clock, net, ends) == [(1.0, "b", 0), (2.0, "c", 1), (3.0, "b", 2), (4.0, "c", 3)]
    assert ends["a"].stats.lateness.messages == 4
    assert ends["a"].stats.lateness.late_s == 0.0


def test_all_that_a_node_receives_shares_its_downlink():
    links = {("b", "a"): LinkShape(1e5, 0.5), ("c", "a"): LinkShape(1e5, 0.5)}
    clock, net, ends = network(links, {"a": NodeShape(1e9, 1e5, {"b": 1e5, "c": 1e5})})
    for number in range(4):
        ends["bc"[number % 2]].send("a", Lane.BULK, Note(number=number), [BODY])
    assert [(at_s, name) for at_s, name, _ in arrivals(clock, net, ends)] == [
        (at_s, "a") for at_s in (1.5, 2.5, 3.5, 4.5)
    ]


def test_a_neighbour_of_the_same_host_takes_neither_way():
    links = {("a", "b"): FAST, ("a", "c"): LinkShape(1e5, 0.0)}
    clock, net, ends = network(links, {"a": NodeShape(1e5, 1e5, {"b": 1e9}), "c": NodeShape(1e5, 1e5)})
    ends["a"].send("b", Lane.BULK, Note(number=1), [BODY])
    ends["a"].send("c", Lane.BULK, Note(number=2), [BODY])
    assert sorted(arrivals(clock, net, ends)) == [(1.0, "b", 1), (1.0, "c", 2)]


def test_who_is_no_node_is_not_kept_waiting():
    _, _, ends = network({("a", "b"): FAST}, {"a": NodeShape(1.0, 1.0, {"b": 1.0})})
    ends["a"].send("d", Lane.PIPELINE, Note(number=1), [BODY])
    ends["d"].send("a", Lane.PIPELINE, Note(number=2), [BODY])
    assert [delivery.message.number for delivery in ends["d"].poll(0.0)] == [1]
    assert [delivery.message.number for delivery in ends["a"].poll(0.0)] == [2]


def test_what_lies_in_lent_memory_takes_its_time_too():
    clock, net, ends = network({("a", "b"): LinkShape(1e5, 0.0)}, {})
    ends["a"].send("b", Lane.BULK, Note(), [ends["a"].empty(100_000, torch.uint8).zero_()])
    assert arrivals(clock, net, ends) == [(1.0, "b", 0)]


def test_a_forgotten_peer_gets_nothing_that_was_under_way():
    clock, net, ends = network({("a", "b"): LinkShape(1e5, 0.5)}, {"b": NodeShape(1e5, 1e4, {"a": 1e5})})
    for number in range(2):
        ends["a"].send("b", Lane.BULK, Note(number=number), [BODY])
    ends["a"].disconnect("b")
    assert arrivals(clock, net, ends) == []


def test_what_is_handed_on_late_is_counted():
    lateness = Lateness()
    node = EmulatedNode[str, str]("a", {"b": LinkShape(100.0, 1.0)}, NodeShape(100.0, 100.0, {"b": 100.0}), lateness)
    node.push("b", Lane.BULK, "x", 100, 0.0)
    node.came("b", Lane.BULK, "y", 100, 2.0)
    assert node.next_due_s() == 2.0
    assert node.left(2.5) == [("b", Lane.BULK, "x")]
    assert node.entered(2.25) == [(Lane.BULK, "y")]
    assert (lateness.messages, lateness.late_s) == (2, pytest.approx(0.75))
    assert node.next_due_s() is None
