from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from ravnest.experts.config import build_expert
from ravnest.experts.expert import HostedExpert
from ravnest.experts.messages import Answer, Backward, Forward, Refused
from ravnest.experts.request_work import WAITING_BATCHES, RequestWork
from tests.support.experts import WIDTH, small_grid

HERE = (0, 0)


def clock() -> Callable[[], float]:
    return lambda: 10.0


def work(**keys: object) -> tuple[RequestWork, HostedExpert]:
    config = small_grid(**keys)
    expert = HostedExpert(build_expert(config, HERE, ()), config)
    return RequestWork(config, {HERE: expert}), expert


def forward(call: int, *, training: bool = True) -> Forward:
    return Forward(call=call, expert=HERE, training=training)


def backward(call: int, updates: int = 0) -> Backward:
    return Backward(call=call, expert=HERE, updates=updates)


def samples(count: int) -> Tensor:
    return torch.randn(count, WIDTH)


def test_requests_of_two_callers_are_one_batch_and_each_gets_its_own() -> None:
    waiting, expert = work()
    mine, theirs = samples(2), samples(3)
    assert waiting.take("a", forward(1), (mine,), 9.0) == waiting.take("b", forward(1), (theirs,), 9.5) == []
    replies = waiting.compute(clock())
    assert [(one.caller, one.message.call) for one in replies] == [("a", 1), ("b", 1)]
    torch.testing.assert_close(replies[0].tensors[0], expert.forward(mine, training=True))
    torch.testing.assert_close(replies[1].tensors[0], expert.forward(theirs, training=True))
    assert waiting.figures.batches == 1
    assert waiting.figures.host_s == pytest.approx(1.5)
    assert waiting.compute(clock()) == []


def test_a_gradient_updates_the_expert_and_its_staleness_is_counted() -> None:
    waiting, expert = work(max_staleness=1)
    for call in range(3):
        waiting.take("a", backward(call), (samples(2), samples(2)), 0.0)
        (reply,) = waiting.compute(clock())
        if call < 2:
            assert isinstance(reply.message, Answer)
            assert (reply.message.staleness, reply.message.updates) == (call, call + 1)
        else:
            assert isinstance(reply.message, Refused)
            assert reply.message.why == "stale"
    assert expert.updates == 2
    assert waiting.figures.staleness == {0: 1, 1: 1}
    assert waiting.figures.refused == {"stale": 1}


def test_what_is_too_stale_does_not_spoil_the_batch() -> None:
    waiting, expert = work(max_staleness=3)
    expert.updates = 5
    waiting.take("old", backward(1, updates=1), (samples(2), samples(2)), 0.0)
    waiting.take("new", backward(1, updates=5), (samples(2), samples(2)), 0.0)
    replies = {one.caller: one.message for one in waiting.compute(clock())}
    assert isinstance(replies["old"], Refused)
    assert isinstance(replies["new"], Answer)
    assert replies["new"].staleness == 0


def test_a_forward_of_a_host_that_had_more_updates_is_not_stale() -> None:
    waiting, _ = work(max_staleness=0)
    waiting.take("a", backward(1, updates=50), (samples(2), samples(2)), 0.0)
    (reply,) = waiting.compute(clock())
    assert isinstance(reply.message, Answer)
    assert reply.message.staleness == 0


@pytest.mark.parametrize(
    ("message", "tensors", "why"),
    [
        (forward(1), (), "invalid"),
        (forward(1), (torch.zeros(()),), "invalid"),
        (forward(1), (torch.zeros(0, WIDTH),), "invalid"),
        (forward(1), (torch.zeros(2, WIDTH + 1),), "invalid"),
        (forward(1), (torch.zeros(2, WIDTH, dtype=torch.float64),), "invalid"),
        (forward(1), (torch.zeros(9, WIDTH),), "invalid"),
        (backward(1), (torch.zeros(2, WIDTH),), "invalid"),
        (backward(1), (torch.zeros(2, WIDTH), torch.zeros(3, WIDTH)), "invalid"),
        (forward(1), (torch.full((2, WIDTH), float("nan")),), "not finite"),
        (backward(1), (torch.zeros(2, WIDTH), torch.full((2, WIDTH), float("inf"))), "not finite"),
        (Forward(call=1, expert=(1, 1), training=True), (torch.zeros(2, WIDTH),), "not here"),
    ],
)
def test_what_cannot_be_computed_is_refused_with_its_reason(message, tensors, why: str) -> None:
    waiting, _ = work()
    (reply,) = waiting.take("a", message, tensors, 0.0)
    assert isinstance(reply.message, Refused)
    assert (reply.message.why, waiting.due_s()) == (why, None)


def test_a_gradient_that_overflows_is_refused_when_it_is_computed() -> None:
    waiting, expert = work()
    waiting.take("a", backward(1), (samples(2), torch.full((2, WIDTH), 1e38)), 0.0)
    (reply,) = waiting.compute(clock())
    assert isinstance(reply.message, Refused)
    assert (reply.message.why, expert.updates) == ("not finite", 0)


def test_what_waits_is_bounded_and_refused_when_its_expert_goes() -> None:
    waiting, _ = work()
    most = WAITING_BATCHES * 8
    assert all(not waiting.take("a", forward(call), (samples(8),), 0.0) for call in range(most // 8))
    (busy,) = waiting.take("a", forward(999), (samples(1),), 0.0)
    assert isinstance(busy.message, Refused)
    assert busy.message.why == "busy"
    gone = waiting.drop(HERE)
    assert len(gone) == most // 8
    assert waiting.due_s() is None


def test_a_host_that_leaves_refuses_what_waits_and_what_comes() -> None:
    waiting, expert = work()
    waiting.take("a", forward(1), (samples(2),), 0.0)
    waiting.take("b", backward(2), (samples(2), samples(2)), 0.0)
    replies = waiting.close() + waiting.take("a", backward(3), (samples(2), samples(2)), 0.0)
    assert sorted((one.caller, one.message.call) for one in replies) == [("a", 1), ("a", 3), ("b", 2)]
    assert all(isinstance(one.message, Refused) and one.message.why == "not here" for one in replies)
    assert (waiting.compute(clock()), expert.updates) == ([], 0)


def test_a_gradient_that_overflows_costs_no_other_its_answer() -> None:
    waiting, expert = work()
    waiting.take("good", backward(1), (samples(2), samples(2)), 0.0)
    waiting.take("bad", backward(1), (samples(2), torch.full((2, WIDTH), 1e38)), 0.0)
    waiting.take("too", backward(1), (samples(2), samples(2)), 0.0)
    replies = {one.caller: one.message for one in waiting.compute(clock())}
    assert isinstance(replies["bad"], Refused)
    for caller in ("good", "too"):
        reply = replies[caller]
        assert isinstance(reply, Answer)
        assert reply.staleness <= 1
    assert expert.updates == waiting.figures.updates == 2


def test_a_module_that_raises_for_some_samples_refuses_those_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting, expert = work()
    plain = expert.module.forward

    def choosy(x: Tensor) -> Tensor:
        if bool((x > 100).any()):
            raise RuntimeError("not these samples " * 100)
        return plain(x)

    monkeypatch.setattr(expert.module, "forward", choosy)
    waiting.take("good", forward(1), (samples(2),), 0.0)
    waiting.take("bad", forward(1), (samples(2) + 1000.0,), 0.0)
    replies = {one.caller: one.message for one in waiting.compute(clock())}
    assert isinstance(replies["good"], Answer)
    refused = replies["bad"]
    assert isinstance(refused, Refused)
    assert (refused.why, len(refused.said)) == ("invalid", 400)
