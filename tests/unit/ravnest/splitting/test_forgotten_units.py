"""What a unit saved comes back as it was: with the weights, buffers, random numbers and casts of its first run."""

import pytest
import torch
from torch import nn

from ravnest.splitting.forgotten_units import run_forgetting

CPU = torch.device("cpu")


def function(weights, device, inputs):
    """A layer with dropout that counts its calls in a buffer, and reads it."""
    weight, counter = weights
    (x,) = inputs
    counter.add_(1.0)
    hidden = nn.functional.dropout(torch.tanh(nn.functional.linear(x, weight)), 0.5)
    return (hidden.exp() * counter, x)


def made():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(5, 4, generator=generator)
    weight = nn.Parameter(torch.randn(4, 4, generator=generator))
    return x, weight, torch.zeros(())


def gradients(run, *, forward=torch.enable_grad, times=1, between=lambda weights: None):
    x, weight, counter = made()
    leaf = x.requires_grad_()
    torch.manual_seed(1)
    with forward():
        outputs = run([weight, counter], (leaf * 2,))
        total = sum(output.sum() for output in outputs)
    between([weight, counter])
    torch.manual_seed(2)
    state = torch.get_rng_state()
    for time in range(times):
        total.backward(retain_graph=time + 1 < times)
    assert torch.equal(torch.get_rng_state(), state)
    return [*(output.detach() for output in outputs), leaf.grad, weight.grad, counter]


def plainly(weights, inputs):
    return function(weights, CPU, inputs)


def forgetting(weights, inputs):
    return run_forgetting(function, weights, (1,), CPU, inputs, lambda saved: None)


def casting():
    return torch.autocast("cpu", torch.bfloat16)


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("forward", [torch.enable_grad, casting])
def test_gradients_and_buffers_are_those_of_a_plain_run(forward, times):
    for mine, other in zip(
        gradients(forgetting, forward=forward, times=times),
        gradients(plainly, forward=forward, times=times),
        strict=True,
    ):
        assert torch.equal(mine, other)


def test_a_buffer_that_changes_before_the_backward_is_as_the_forward_found_it():
    def later(weights):
        weights[1].add_(10.0)

    found = gradients(forgetting, between=later)
    assert torch.equal(found[2], gradients(plainly)[2])
    assert float(found[-1]) == 11.0


def test_nothing_is_kept_but_the_inputs():
    x, weight, counter = made()
    seen, kept = [], []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor):
        (output, _) = run_forgetting(function, [weight, counter], (1,), CPU, (x,), seen.append)
    assert kept == []
    assert seen == []
    output.sum().backward()
    assert len(seen) == 1
    assert any(tensor.shape == (5, 4) for tensor in seen[0])


def test_a_unit_that_does_something_else_the_second_time_is_told():
    calls = []

    def fickle(weights, device, inputs):
        calls.append(1)
        (x,) = inputs
        return ((x * x).exp() if len(calls) == 1 else x * x,)

    x = torch.ones(3, requires_grad=True)
    (output,) = run_forgetting(fickle, [], (), CPU, (x * 1,), lambda saved: None)
    with pytest.raises(RuntimeError, match="saved 3 tensors for its backward, and 2 when run again"):
        output.sum().backward()
