"""Autocast around stages, and float16's scaling, on the CPU."""

from functools import partial

import pytest
import torch
from torch import nn

from ravnest.errors import RunFailed
from ravnest.stage.backward import MicroBatchGraph, Root, scaled_backward, whole
from ravnest.stage.device import MixedPrecision
from ravnest.stage.memory import ActivationBytes, Peaks
from ravnest.training.precision import FIRST_SCALE, LossScale
from ravnest.training.weights import ParameterSet
from tests.support.local import local_run, setups_of, tiny_job

run_kept = partial(whole, keep=True)


def test_float32_changes_nothing():
    layer, x = nn.Linear(4, 4), torch.randn(2, 4)
    mixed = MixedPrecision("float32", "cpu")
    with mixed.forward():
        assert torch.equal(layer(x), layer(x))
        assert layer(x).dtype == torch.float32
    assert mixed.scale is None


def test_weights_are_cast_once_for_each_version():
    layer, mixed = nn.Linear(4, 4, bias=False), MixedPrecision("bfloat16", "cpu")
    casts: list[set[int]] = []

    def forward() -> torch.Tensor:
        seen = set()
        pack = lambda tensor: (seen.add(tensor.untyped_storage().data_ptr()), tensor)[1]  # noqa: E731
        with mixed.forward(), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            output = layer(torch.ones(1, 4, requires_grad=True))
        casts.append(seen)
        return output

    first, second = forward(), forward()
    assert casts[0] & casts[1], "the weight's cast is shared"
    first.float().sum().backward()
    one = layer.weight.grad.clone()
    second.float().sum().backward()  # the shared cast serves both graphs
    assert torch.equal(layer.weight.grad, 2 * one)
    with torch.no_grad():
        layer.weight.zero_()
    mixed.weights_changed()
    assert torch.equal(forward(), torch.zeros(1, 4, dtype=torch.bfloat16))
    mixed.weights_changed()


def test_what_an_evaluation_casts_is_not_kept_for_training():
    layer, mixed = nn.Linear(4, 4), MixedPrecision("bfloat16", "cpu")
    with torch.no_grad(), mixed.forward():
        assert not torch.is_autocast_cache_enabled()
        layer(torch.ones(1, 4))
    with mixed.forward():
        assert torch.is_autocast_cache_enabled()
        layer(torch.ones(1, 4)).float().sum().backward()
    mixed.weights_changed()
    assert layer.weight.grad is not None


def test_cast_weights_are_counted_apart_from_activations():
    layer, peaks, mixed = nn.Linear(64, 64), Peaks(), MixedPrecision("bfloat16", "cpu")
    kept = ActivationBytes(layer.parameters, peaks)
    x = torch.ones(2, 64, requires_grad=True)
    with kept.forward(0, [x]), mixed.forward():
        layer(x).sum()
    mixed.weights_changed()
    assert kept.cast_bytes == 2 * 64 * 64
    assert peaks.bytes["activations"] == (4 + 2) * 2 * 64  # the input, and its cast


def graph_of(layer: nn.Module, x: torch.Tensor, mixed: MixedPrecision) -> MicroBatchGraph:
    with mixed.forward():
        output = layer(x).float()
    return MicroBatchGraph((x,), Root([output]), (0,), ParameterSet(layer.named_parameters()))


def test_a_backward_that_overflows_is_run_again_at_half_the_scale():
    torch.manual_seed(0)
    layer, x = nn.Linear(4, 4), torch.randn(3, 4, requires_grad=True)
    mixed = MixedPrecision("float16", "cpu")
    received = [torch.full((3, 4), 4.0)]  # times the first scale it is beyond float16
    graph = graph_of(layer, x, mixed)
    scaled_backward(graph, received, mixed.scale, run_kept)
    mixed.weights_changed()
    assert mixed.scale.value < FIRST_SCALE
    assert mixed.scale.overflows > 0
    found = [x.grad.clone(), layer.weight.grad.clone(), layer.bias.grad.clone()]
    expected = torch.autograd.grad(layer(x), [x, layer.weight, layer.bias], received)
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.allclose(ours, theirs, rtol=5e-3, atol=1e-2)


def test_small_gradients_do_not_vanish():
    layer, x = nn.Linear(4, 4), torch.randn(3, 4, requires_grad=True)
    received = [torch.full((3, 4), 1e-9)]
    mixed = MixedPrecision("float16", "cpu")
    graph = graph_of(layer, x, mixed)
    scaled_backward(graph, received, mixed.scale, run_kept)
    assert layer.bias.grad.tolist() == pytest.approx([3e-9] * 4, rel=1e-2)
    layer.zero_grad()
    whole(graph_of(layer, x, mixed), received)
    assert layer.bias.grad.abs().max() == 0
    mixed.weights_changed()


def test_gradients_of_earlier_micro_batches_are_not_touched():
    layer, x = nn.Linear(2, 2), torch.ones(1, 2, requires_grad=True)
    earlier = layer.weight.grad = torch.full((2, 2), 7.0)
    scaled_backward(graph_of(layer, x, MixedPrecision("float32", "cpu")), [torch.ones(1, 2)], LossScale(), run_kept)
    assert earlier.tolist() == [[7.0, 7.0], [7.0, 7.0]]
    assert torch.equal(layer.weight.grad, torch.ones(2, 2))


def test_what_is_not_finite_at_any_scale_ends_the_run():
    layer, x = nn.Linear(2, 2), torch.ones(1, 2, requires_grad=True)
    graph = graph_of(layer, x, MixedPrecision("float32", "cpu"))
    with pytest.raises(RunFailed, match="not finite at any scale"):
        scaled_backward(graph, [torch.full((1, 2), float("inf"))], LossScale(), run_kept)


def losses(**changes) -> list[float]:
    run = local_run(tiny_job(**changes), parts=(2,))
    found = []
    last = run.stages["c0.s1"]
    update = last.compute.update
    last.compute.update = lambda *given: (result := update(*given), found.extend(result[1]))[0]
    run.run()
    return found


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
@pytest.mark.parametrize("changes", [{}, {"activation_checkpointing": "always"}, {"split_backward": "always"}])
def test_a_run_learns_as_it_does_in_float32(precision, changes):
    exact = losses(max_staleness=0)
    mixed = losses(max_staleness=0, precision=precision, **changes)
    together = min(len(mixed), len(exact))  # how many more updates come before the drain is a matter of timing
    assert together >= 60
    assert mixed[:together] != exact[:together]
    assert mixed[:together] == pytest.approx(exact[:together], rel=0.05, abs=0.02)


def test_float16_does_not_split_backwards():
    setups, _ = setups_of(tiny_job(precision="float16", split_backward="always"), parts=(2,))
    assert [setup.bounds.room_to_split for setup in setups.values()] == [0, 0]
    setups, _ = setups_of(tiny_job(precision="bfloat16", split_backward="always"), parts=(2,))
    assert [setup.bounds.room_to_split > 0 for setup in setups.values()] == [False, True]
