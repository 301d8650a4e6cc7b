"""What a line does in its turns, over a network without sockets and with a clock that the test moves."""

from concurrent.futures import Future

import pytest

from ravnest.profiling.probe_line import LineTurns
from ravnest.profiling.probes import LEAST_AHEAD_BYTES, Arrived, Block, Ping, Pong, RoundTrips, Transfer, codec
from ring_allreduce import TransportError
from ring_allreduce.transport import InProcessNetwork, Lane


class Line:
    """A line and its endpoint, at a time that the test says."""

    def __init__(self, network: InProcessNetwork, name: str) -> None:
        self.endpoint = network.endpoint(name, codec())
        self.turns = LineTurns(self.endpoint)

    def step(self, now_s: float) -> None:
        for delivery in self.endpoint.poll(0.0):
            self.turns.handle(delivery, now_s, 1000.0 + now_s)
        self.turns.turn(now_s, 1000.0 + now_s)


@pytest.fixture
def pair() -> tuple[Line, Line]:
    network = InProcessNetwork()
    a, b = Line(network, "a"), Line(network, "b")
    a.endpoint.connect({"b": b.endpoint.address})
    b.endpoint.connect({"a": a.endpoint.address})
    return a, b


def measured(a: Line, b: Line, task: RoundTrips | Transfer, deadline_s: float = 10.0) -> Future[None]:
    """Lets both lines take turns, a millisecond apart, until the measurement of `a` has ended."""
    asked: Future[None] = Future()
    assert a.turns.is_idle
    a.turns.begin(task, deadline_s, asked)
    for millisecond in range(12_000):
        a.step(millisecond / 1000)
        b.step(millisecond / 1000)
        if asked.done():
            break
    assert a.turns.is_idle
    return asked


def test_pings_are_answered_with_the_clock_of_the_peer(pair: tuple[Line, Line]) -> None:
    a, b = pair
    task = RoundTrips("b", Lane.PIPELINE, 3, 0.1, 0.0)
    measured(a, b, task).result(0)
    assert len(task.round_trips_s) >= 3
    assert all(abs(offset) < 0.002 for offset in task.clock_offsets_s)


def test_blocks_are_answered_until_all_have_arrived(pair: tuple[Line, Line]) -> None:
    a, b = pair
    task = Transfer(1, ["b"], 0.0005, 0.0)  # over at the second turn: this network is faster than any
    measured(a, b, task).result(0)
    assert task.done
    assert task.arrivals["b"][-1][1] == LEAST_AHEAD_BYTES


def test_two_lines_may_measure_each_other_at_once(pair: tuple[Line, Line]) -> None:
    a, b = pair
    other: Future[None] = Future()
    b.turns.begin(RoundTrips("a", Lane.BULK, 2, 0.0, 0.0), 10.0, other)
    measured(a, b, RoundTrips("b", Lane.PIPELINE, 2, 0.1, 0.0)).result(0)
    other.result(0)


def test_without_an_answer_the_measurement_ends_at_its_deadline(pair: tuple[Line, Line]) -> None:
    a, b = pair
    b.endpoint.disconnect(["a"])
    with pytest.raises(TimeoutError):
        measured(a, b, RoundTrips("b", Lane.PIPELINE, 3, 0.1, 0.0), deadline_s=2.0).result(0)


def test_what_cannot_be_sent_ends_the_measurement_and_not_the_line(pair: tuple[Line, Line]) -> None:
    a, b = pair
    with pytest.raises(TransportError):
        measured(a, b, RoundTrips("nobody", Lane.PIPELINE, 3, 0.1, 0.0)).result(0)
    measured(a, b, RoundTrips("b", Lane.PIPELINE, 3, 0.1, 0.0)).result(0)


def test_a_peer_that_takes_no_answers_is_passed_over() -> None:
    network = InProcessNetwork()
    a, b = Line(network, "a"), Line(network, "b")
    a.endpoint.connect({"b": b.endpoint.address})
    b.endpoint.connect({"a": a.endpoint.address})
    a.endpoint.send("b", Lane.PIPELINE, Ping(number=0))
    (delivery,) = b.endpoint.poll(0.0)
    b.endpoint.disconnect(["a"])
    b.turns.handle(delivery, 0.0, 0.0)
    assert a.endpoint.poll(0.0) == []


def test_an_idle_line_waits_for_nothing(pair: tuple[Line, Line]) -> None:
    a, b = pair
    assert a.turns.due_s(5.0) == float("inf")
    a.turns.begin(Transfer(1, ["b"], 3.0, 5.0), 10.0, Future())
    assert a.turns.due_s(5.0) == 8.0
    for message in (Pong(number=7, wall_s=0.0), Arrived(transfer=9, number=0)):
        b.endpoint.send("a", Lane.PIPELINE, message)
    a.step(5.0)  # answers that nobody asked for change nothing
    assert not a.turns.is_idle


def test_a_block_is_answered_with_its_own_numbers(pair: tuple[Line, Line]) -> None:
    a, b = pair
    a.endpoint.send("b", Lane.BULK, Block(transfer=4, number=2))
    b.step(0.0)
    assert [delivery.message for delivery in a.endpoint.poll(0.0)] == [Arrived(transfer=4, number=2)]
