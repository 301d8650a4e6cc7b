"""A split backward against a whole one, for each kind of layer: the same gradients, and nothing kept."""

import gc
import weakref
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from ravnest.stage.backward import MicroBatchGraph, Root, scaled_backward, whole
from ravnest.stage.split_backward import NotSplittable, Splitter
from ravnest.training.precision import LossScale
from ravnest.training.weights import ParameterSet
from tests.support.local import local_run, tiny_job


class Positions(nn.Module):
    """An embedding by the side of the path."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(6, 4)
        self.mix = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.mix(x + self.table(torch.arange(x.shape[1])))


class Siblings(nn.Module):
    """One layer used twice, neither use behind the other."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).tanh() + self.layer(2 * x).sigmoid()


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.LSTM] | type[nn.GRU]) -> None:
        super().__init__()
        self.cells = kind(4, 5, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.cells(x)[0]


class Forked(nn.Module):
    """Two outputs; a parameter that is scaled before it is used; one input only passes through."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.weight = nn.Parameter(torch.randn(4, 4))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x @ (self.weight * self.scale), x


def attention() -> nn.Module:
    return nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)


def stack() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))


LAYERS = {
    "linear": (lambda: nn.Linear(4, 5), (3, 4)),
    "linear without bias": (lambda: nn.Linear(4, 5, bias=False), (2, 3, 4)),
    "convolution": (lambda: nn.Conv2d(3, 4, 3), (2, 3, 8, 8)),
    "transposed convolution": (lambda: nn.ConvTranspose2d(3, 4, 3), (2, 3, 8, 8)),
    "layer norm": (lambda: nn.LayerNorm(4), (5, 4)),
    "batch norm": (lambda: nn.BatchNorm2d(3), (4, 3, 5, 5)),
    "group norm": (lambda: nn.GroupNorm(2, 4), (3, 4, 5)),
    "RMS norm": (lambda: nn.RMSNorm(4), (5, 4)),
    "embedding by the side": (Positions, (2, 6, 4)),
    "attention block": (attention, (2, 5, 8)),
    "siblings": (Siblings, (2, 4)),
    "two outputs": (Forked, (3, 4)),
    "a stack": (stack, (2, 3, 8, 8)),
}


def forward(layer: nn.Module, x: Tensor) -> MicroBatchGraph:
    torch.manual_seed(1)  # of dropout
    outputs = layer(x)
    outputs = (outputs,) if isinstance(outputs, Tensor) else outputs
    return MicroBatchGraph((x,), Root(outputs), tuple(range(len(outputs))), ParameterSet(layer.named_parameters()))


def arriving(layer: nn.Module, x: Tensor) -> list[Tensor]:
    outputs = layer(x)
    outputs = (outputs,) if isinstance(outputs, Tensor) else outputs
    torch.manual_seed(2)
    return [torch.randn_like(output) for output in outputs]


def gradients_of(layer: nn.Module, graph: MicroBatchGraph) -> dict[str, Tensor]:
    found = {name: parameter.grad.clone() for name, parameter in layer.named_parameters()}
    found["input"] = graph.inputs[0].grad.clone()
    for tensor in (*layer.parameters(), graph.inputs[0]):
        tensor.grad = None
    return found


def equal(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> bool:
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in theirs)


@pytest.mark.parametrize("kind", LAYERS)
def test_both_parts_give_the_gradients_of_a_whole_backward(kind):
    torch.manual_seed(0)
    make, shape = LAYERS[kind]
    layer, x = make(), torch.randn(shape).requires_grad_()
    received = arriving(layer, x)
    graph = forward(layer, x)
    whole(graph, received)
    expected = gradients_of(layer, graph)

    splitter = Splitter()
    graph = forward(layer, x)
    splitter.try_out(graph, received)
    assert splitter.refused is None
    assert equal(gradients_of(layer, graph), expected)  # and the trial leaves no gradient of its own
    for _ in range(2):  # the frontier is found again
        graph = forward(layer, x)
        rest = splitter.input_gradients(graph, received)
        assert torch.equal(x.grad, expected["input"])
        assert all(parameter.grad is None for parameter in layer.parameters())
        rest.run()
        assert equal(gradients_of(layer, graph), expected)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_recurrent_layers_are_split_exactly_or_refused(kind):
    torch.manual_seed(0)
    layer, x = Recurrent(kind), torch.randn(3, 6, 4).requires_grad_()
    received = arriving(layer, x)
    graph = forward(layer, x)
    whole(graph, received)
    expected = gradients_of(layer, graph)
    splitter = Splitter()
    graph = forward(layer, x)
    splitter.try_out(graph, received)
    assert equal(gradients_of(layer, graph), expected)
    if kind is nn.GRU:
        assert splitter.refused == "a parameter is used twice, once behind the other use"


def test_gradients_add_up_over_micro_batches_as_in_a_plain_loop():
    torch.manual_seed(0)
    layer, splitter = attention(), Splitter()
    batches = [torch.randn(2, 5, 8).requires_grad_() for _ in range(3)]
    received = arriving(layer, batches[0])
    for x in batches:
        whole(forward(layer, x), received)
    expected = {name: parameter.grad.clone() for name, parameter in layer.named_parameters()}
    layer.zero_grad()
    rests = [splitter.input_gradients(forward(layer, x), received) for x in batches]
    for rest in rests:
        rest.run()
    assert all(torch.equal(parameter.grad, expected[name]) for name, parameter in layer.named_parameters())


class Turned(nn.Module):
    """With one sample, autograd leaves one tensor on its parameter and its input."""

    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Parameter(torch.randn(3, 4))

    def forward(self, x: Tensor) -> Tensor:
        return x.transpose(0, 1) + self.places.unsqueeze(1)


def backward_in(way: str, graph: MicroBatchGraph, received: list[Tensor]) -> None:
    match way:
        case "whole":
            whole(graph, received)
        case "scaled":
            scaled_backward(graph, received, LossScale(), partial(whole, keep=True))
        case "tried":
            Splitter().try_out(graph, received)
        case "split":
            Splitter().input_gradients(graph, received).run()


@pytest.mark.parametrize("way", ["whole", "scaled", "tried", "split"])
def test_a_gradient_that_is_sent_is_not_the_one_that_a_parameter_goes_on_adding_to(way):
    torch.manual_seed(0)
    layer, x = Turned(), torch.randn(1, 3, 4).requires_grad_()
    gradient = torch.randn(3, 1, 4)
    backward_in(way, forward(layer, x), [gradient.clone()])
    assert torch.equal(x.grad, gradient.transpose(0, 1))
    assert torch.equal(layer.places.grad, gradient.squeeze(1))
    whole(forward(layer, torch.randn(1, 3, 4).requires_grad_()), [torch.ones(3, 1, 4)])
    assert torch.equal(layer.places.grad, gradient.squeeze(1) + 1)
    assert torch.equal(x.grad, gradient.transpose(0, 1))


def test_a_last_stage_splits_from_its_loss():
    layer, x = nn.Linear(4, 1), torch.randn(3, 4).requires_grad_()
    graph = MicroBatchGraph((x,), layer(x).square().mean(), (), ParameterSet(layer.named_parameters()))
    rest = Splitter().input_gradients(graph, ())
    assert layer.weight.grad is None
    rest.run()
    expected = torch.autograd.grad(layer(x).square().mean(), [x, layer.weight, layer.bias])
    assert all(torch.equal(a, b) for a, b in zip((x.grad, layer.weight.grad, layer.bias.grad), expected, strict=True))


def test_nothing_is_kept_once_the_second_part_has_run():
    layer, x = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)), torch.randn(3, 4).requires_grad_()
    splitter, received = Splitter(), arriving(layer, x)
    gc.disable()
    try:
        graph = forward(layer, x)
        end = weakref.ref(graph.end(received))
        rest = splitter.input_gradients(graph, received)
        kept = [weakref.ref(tensor) for tensor in rest.kept]
        del graph, received
        assert end() is None
        assert len(kept) == 2
        rest.run()
        del rest
        assert [tensor() for tensor in kept] == [None, None]
    finally:
        gc.enable()


def test_what_cannot_be_split_is_refused_and_computed_whole():
    shared = nn.Linear(4, 4)
    layer, x = nn.Sequential(shared, nn.Tanh(), shared), torch.randn(2, 4).requires_grad_()
    received = arriving(layer, x)
    graph = forward(layer, x)
    whole(graph, received)
    expected = gradients_of(layer, graph)
    splitter = Splitter()
    graph = forward(layer, x)
    splitter.try_out(graph, received)
    assert splitter.refused == "a parameter is used twice, once behind the other use"
    assert equal(gradients_of(layer, graph), expected)


class Wrong(torch.autograd.Function):
    """Gives another gradient each time."""

    calls = 0

    @staticmethod
    def forward(ctx, x, weight):
        return x * weight

    @staticmethod
    def backward(ctx, gradient):
        Wrong.calls += 1
        return gradient * Wrong.calls, gradient * Wrong.calls


def test_gradients_that_differ_are_noticed():
    layer = nn.Linear(3, 3)
    x = torch.randn(3).requires_grad_()
    graph = MicroBatchGraph(
        (x,), Root([Wrong.apply(layer(x), layer.bias)]), (0,), ParameterSet(layer.named_parameters())
    )
    splitter = Splitter()
    splitter.try_out(graph, [torch.ones(3)])
    assert splitter.refused is not None


def test_a_graph_of_another_form_is_not_taken_for_the_first():
    layer, splitter = nn.Linear(4, 4), Splitter()
    x = torch.randn(2, 4).requires_grad_()
    parameters = ParameterSet(layer.named_parameters())
    splitter.input_gradients(MicroBatchGraph((x,), Root([layer(x)]), (0,), parameters), [torch.ones(2, 4)])
    with pytest.raises(NotSplittable, match="first micro-batch"):
        splitter.input_gradients(MicroBatchGraph((x,), Root([layer(x).tanh()]), (0,), parameters), [torch.ones(2, 4)])
    with pytest.raises(NotSplittable, match="first micro-batch"):
        splitter.input_gradients(MicroBatchGraph((x,), Root([x]), (0,), parameters), [torch.ones(2, 4)])


@pytest.mark.parametrize("stage", [1, 2])
def test_exported_stages_are_split_exactly(stage):
    run = local_run(tiny_job(split_backward="always"), parts=(3,))
    computes = [each.compute for each in run.stages.values()]
    passed = [()]
    for compute in computes:
        passed.append(compute.forward(0, passed[-1]))
    received = () if stage == 2 else computes[2].backward(0, (), False)[0]
    expected, _ = computes[stage].backward(0, received, False)  # the trial, and then a whole one
    assert computes[stage].splitter.tried
    assert computes[stage].splitter.refused is None
    parameters = computes[stage].weights.current()
    before = {name: parameter.grad.clone() for name, parameter in parameters.items()}
    computes[stage].forward(0, passed[stage])
    sent, norm = computes[stage].input_gradients(0, received)
    assert norm is None
    assert all(torch.equal(a, b) for a, b in zip(sent, expected, strict=True))
    assert all(torch.equal(parameter.grad, before[name]) for name, parameter in parameters.items())
    computes[stage].weight_gradients(0)
    assert all(torch.equal(parameter.grad, 2 * before[name]) for name, parameter in parameters.items())
