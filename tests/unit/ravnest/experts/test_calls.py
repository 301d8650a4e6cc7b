import gc
import weakref
from concurrent.futures import Future

import pytest
import torch
from torch import Tensor

from ravnest.experts.answer_times import FIRST_S, REST_S, ROW
from ravnest.experts.calls import HELLO_S, Answered, Call, Calls, Failed
from ravnest.experts.messages import Answer, Backward, Forward, Hello, Refused, Welcome, codec
from ring_allreduce.transport import InProcessNetwork, Lane, Message, PeerAddress, TransportLimits
from tests.support.experts import WIDTH, small_grid

HOSTS = {"host": PeerAddress("in-process", 0, 0)}


class Line:
    """A caller and a host, whose words the test says."""

    def __init__(self, limits: TransportLimits = TransportLimits()) -> None:  # noqa: B008 - frozen
        self.network = network = InProcessNetwork(limits=limits)
        self.mine, self.host = network.endpoint("caller", codec()), network.endpoint("host", codec())
        self.host.connect({"caller": self.mine.address})
        self.calls = Calls(small_grid(), self.mine)

    def welcome(self) -> None:
        self.calls.meet(HOSTS, 0.0)
        self.heard()
        self.say(Welcome(), 0.0)

    def mine_and_another(self) -> str:
        """Another host, which has welcomed the caller."""
        another = self.network.endpoint("another", codec())
        another.connect({"caller": self.mine.address})
        self.calls.meet({**HOSTS, "another": PeerAddress("in-process", 0, 0)}, 0.0)
        another.send("caller", Lane.PIPELINE, Welcome())
        for delivery in self.mine.poll(0.0):
            self.calls.take(delivery, 0.0)
        return "another"

    def heard(self) -> list[Message]:
        return [one.message for one in self.host.poll(0.0)]

    def say(self, message: Message, now_s: float, *tensors: Tensor) -> list[object]:
        self.host.send("caller", Lane.PIPELINE, message, tensors)
        return [self.calls.take(one, now_s) for one in self.mine.poll(0.0)]

    def ask(self, now_s: float = 0.0, updates: int | None = None) -> "Future[Answered | Failed]":
        future: Future[Answered | Failed] = Future()
        tensors = (torch.zeros(2, WIDTH),) * (1 if updates is None else 2)
        self.calls.send(Call((0, 1), "host", tensors, True, updates), future, now_s)
        return future


@pytest.fixture
def line() -> Line:
    made = Line()
    made.welcome()
    return made


def test_a_host_is_greeted_until_it_welcomes() -> None:
    line = Line()
    for now_s in (0.0, HELLO_S / 2, HELLO_S):
        line.calls.meet(HOSTS, now_s)
    assert line.heard() == [Hello(), Hello()]
    assert line.calls.usable(0.0) == frozenset()
    line.say(Welcome(), 1.0)
    assert line.calls.usable(1.0) == {"host"}
    line.calls.meet({}, 2.0)
    assert line.calls.usable(2.0) == frozenset()


def test_a_forward_and_its_backward_are_sent_and_answered(line: Line) -> None:
    first, second = line.ask(), line.ask(updates=7)
    assert line.heard() == [
        Forward(call=1, expert=(0, 1), training=True),
        Backward(call=2, expert=(0, 1), updates=7),
    ]
    output = torch.randn(2, WIDTH)
    line.say(Answer(call=2, updates=9, staleness=1), 0.5, output)
    assert not first.done()
    result = second.result()
    assert isinstance(result, Answered)
    assert torch.equal(result.tensor, output)
    assert (result.updates, result.staleness, result.seconds) == (9, 1, 0.5)
    assert line.calls.answer_times() == {"host": 0.5}


def test_the_first_backward_of_a_host_may_take_as_long_as_its_first_answer(line: Line) -> None:
    line.ask()
    line.say(Answer(call=1, updates=0), 0.1, torch.zeros(2, WIDTH))
    first = line.ask(1.0, updates=0)
    line.calls.fail_late(0.9 + FIRST_S)
    assert not first.done()
    line.say(Answer(call=2, updates=1), 0.95 + FIRST_S, torch.zeros(2, WIDTH))
    assert first.done()
    assert isinstance(first.result(), Answered)


def test_a_call_is_late_at_its_deadline_and_a_late_answer_is_measured(line: Line) -> None:
    future = line.ask(now_s=1.0)
    assert line.calls.due_s == 1.0 + FIRST_S
    line.calls.fail_late(FIRST_S)
    assert not future.done()
    line.calls.fail_late(1.0 + FIRST_S)
    assert future.result() == Failed("late")
    line.say(Answer(call=1, updates=1), 13.0, torch.zeros(2, WIDTH))
    assert line.calls.answer_times() == {"host": 12.0}
    assert future.result() == Failed("late")


def test_a_host_that_leaves_calls_unanswered_is_left_alone_while_there_are_others(line: Line) -> None:
    other = line.mine_and_another()
    for number in range(ROW):
        line.ask(now_s=20.0 * number)
        line.calls.fail_late(20.0 * number + FIRST_S)
    noticed_s = 20.0 * (ROW - 1) + FIRST_S
    assert line.calls.usable(noticed_s + REST_S / 2) == {other}
    assert line.calls.usable(noticed_s + REST_S) == {"host", other}
    line.calls.meet(HOSTS, noticed_s)
    assert line.calls.usable(noticed_s + REST_S / 2) == {"host"}


@pytest.mark.parametrize(
    "tensors",
    [(), (torch.zeros(3, WIDTH),), (torch.zeros(2, WIDTH, dtype=torch.float64),), (torch.zeros(2, WIDTH),) * 2],
)
def test_an_answer_of_another_form_is_a_failure(line: Line, tensors: tuple[Tensor, ...]) -> None:
    future = line.ask()
    line.say(Answer(call=1, updates=1), 0.1, *tensors)
    assert future.result() == Failed("invalid answer")


def test_an_answer_that_is_not_finite_is_a_failure(line: Line) -> None:
    future = line.ask()
    line.say(Answer(call=1, updates=1), 0.1, torch.full((2, WIDTH), float("nan")))
    assert future.result() == Failed("answer not finite")


def test_a_refusal_says_why_and_which_expert_is_gone(line: Line) -> None:
    first, second = line.ask(), line.ask()
    assert line.say(Refused(call=1, why="busy"), 0.1) == [None]
    assert line.say(Refused(call=2, why="not here"), 0.1) == [(0, 1)]
    assert (first.result(), second.result()) == (Failed("busy"), Failed("not here"))


def test_answers_that_nobody_waits_for_are_dropped(line: Line) -> None:
    future = line.ask()
    line.say(Answer(call=99, updates=1), 0.1, torch.zeros(2, WIDTH))
    line.say(Refused(call=1, why="busy"), 0.1)
    line.say(Answer(call=1, updates=1), 0.2, torch.zeros(2, WIDTH))
    assert future.result() == Failed("busy")


def test_a_host_that_is_gone_is_a_failure_at_once(line: Line) -> None:
    line.calls.meet({}, 1.0)
    assert line.ask().result() == Failed("lost")


def test_a_request_that_is_too_large_to_travel_is_a_failure_and_others_go_on() -> None:
    line = Line(TransportLimits(max_message_bytes=1000))
    line.welcome()
    future: Future[Answered | Failed] = Future()
    line.calls.send(Call((0, 1), "host", (torch.zeros(100, WIDTH),)), future, 0.0)
    assert future.result() == Failed("lost")
    assert not line.ask().done()
    assert line.heard() == [Forward(call=2, expert=(0, 1), training=True)]


def test_what_is_late_keeps_no_tensors(line: Line) -> None:
    samples = torch.zeros(2, WIDTH)
    gone = weakref.ref(samples)
    line.calls.send(Call((0, 1), "host", (samples,)), Future(), 0.0)
    line.calls.fail_late(FIRST_S)
    line.heard()
    del samples
    gc.collect()
    assert gone() is None


def test_closing_fails_what_is_under_way(line: Line) -> None:
    future = line.ask()
    line.calls.fail_all()
    assert future.result() == Failed("closed")
