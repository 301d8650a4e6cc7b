"""Nesterov's momentum over rounds: torch's own arithmetic, the same bytes everywhere, and a state that resumes."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ring_allreduce.errors import InvalidInput
from ring_allreduce.rounds.outer_optimizer import Nesterov
from ring_allreduce.rounds.progress import Progress

ELEMENTS = 33


def averages(seed, rounds):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(ELEMENTS, generator=generator) for _ in range(rounds)]


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), st.floats(0.01, 2.0), st.floats(0.01, 0.99))
def test_it_is_torchs_sgd_with_the_average_as_negative_gradient(seed, lr, momentum):
    weights = torch.nn.Parameter(torch.zeros(ELEMENTS))
    theirs = torch.optim.SGD([weights], lr=lr, momentum=momentum, nesterov=True)
    progress = Progress(torch.zeros(ELEMENTS), Nesterov(lr, momentum))
    for number, average in enumerate(averages(seed, 12), 1):
        weights.grad = -average
        theirs.step()
        progress.snapshot(number, progress.anchor)
        progress.merge(number, average)
        torch.testing.assert_close(progress.anchor, weights.data, rtol=1e-5, atol=1e-5 * lr)


def test_every_operation_rounds_by_itself():
    """Bit by bit what float32 arithmetic gives without a fused multiply-add, here computed in float64 and rounded."""
    outer = Nesterov(0.7, 0.9)
    lr, momentum = (torch.tensor(value, dtype=torch.float32).double() for value in (0.7, 0.9))
    velocity = torch.zeros(ELEMENTS)
    for average in averages(0, 20):
        # The product of two float32 is exact in float64, and so is their sum to far below half a bit of float32.
        velocity = ((velocity.double() * momentum).float().double() + average.double()).float()
        ahead = ((velocity.double() * momentum).float().double() + average.double()).float()
        assert torch.equal(outer(average), (ahead.double() * lr).float())


def test_without_momentum_and_with_lr_1_it_is_the_average():
    outer = Nesterov(1.0, 0.0)
    for average in averages(1, 3):
        assert torch.equal(outer(average), average)


def test_the_average_is_left_alone_and_the_step_is_new():
    outer, average = Nesterov(), torch.ones(3)
    first = outer(average)
    kept = first.clone()
    outer(average)
    assert average.tolist() == [1.0, 1.0, 1.0]
    assert torch.equal(first, kept)


def test_from_its_state_it_goes_on_as_if_nothing_had_happened():
    whole, before, after = Nesterov(), Nesterov(), Nesterov()
    rounds = averages(2, 10)
    for average in rounds[:5]:
        whole(average)
        before(average)
    after.load(before.state())
    before(rounds[0])  # the state was copied: this changes nothing
    for average in rounds[5:]:
        assert torch.equal(after(average), whole(average))


def test_an_empty_state_is_a_new_start():
    outer = Nesterov()
    assert outer.state() == {}
    outer(torch.ones(3))
    outer.load({})
    assert outer.state() == {}


def test_a_round_in_which_nobody_trained_moves_nothing():
    outer = Nesterov()
    progress = Progress(torch.zeros(3), outer)
    progress.snapshot(1, torch.ones(3))
    progress.merge(1, torch.ones(3), total_weight=4.0)
    anchor, velocity = progress.anchor.clone(), outer.state()["momentum"].clone()
    progress.snapshot(2, anchor)
    assert not progress.merge(2, torch.zeros(3), total_weight=0.0).any()
    assert torch.equal(progress.anchor, anchor)
    assert torch.equal(outer.state()["momentum"], velocity)


@pytest.mark.parametrize(("lr", "momentum"), [(0.0, 0.9), (-1.0, 0.9), (math.nan, 0.9), (0.7, 1.0), (0.7, -0.1)])
def test_refuses_what_cannot_converge(lr, momentum):
    with pytest.raises(InvalidInput, match="Nesterov needs"):
        Nesterov(lr, momentum)


@pytest.mark.parametrize(
    "state", [{"other": torch.zeros(3)}, {"momentum": torch.zeros(3).double()}, {"momentum": torch.zeros(1, 3)}]
)
def test_refuses_another_state(state):
    with pytest.raises(InvalidInput, match="the state of Nesterov"):
        Nesterov().load(state)
