"""A backward after an update gives the gradients of the weights that its forward used (design §6).

Each layer kind is tried with each optimizer, as an eager module and as the exported stage that a run trains, and the
naive ways are shown to fail, so that these tests can.
"""

import copy
from functools import lru_cache

import pytest
import torch
from torch import nn

from ravnest.splitting import StageModule, StageProgram, capture
from ravnest.training.optimizer import OptimizerConfig
from ravnest.training.weights import VersionedWeights

WIDTH = 6


class Replaceable(nn.Module):
    """Any module, with its parameters replaceable by name as in a stage."""

    def __init__(self, *layers):
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x):
        return self.layers(x)

    def set_parameter(self, name, parameter):
        owner, _, leaf = name.rpartition(".")
        setattr(self.get_submodule(owner), leaf, parameter)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(WIDTH, WIDTH, num_layers=2, batch_first=True)

    def forward(self, x):
        return self.lstm(x)[0]


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)

    def forward(self, x):
        return self.attention(x, x, x, need_weights=False)[0]


SEQUENCE, IMAGE = (3, 4, WIDTH), (3, WIDTH, 5, 5)
LAYERS = {
    "Linear": (lambda: [nn.Linear(WIDTH, WIDTH)], SEQUENCE),
    "LayerNorm": (lambda: [nn.LayerNorm(WIDTH)], SEQUENCE),
    "RMSNorm": (lambda: [nn.RMSNorm(WIDTH)], SEQUENCE),
    "Conv": (lambda: [nn.Conv2d(WIDTH, WIDTH, 3)], IMAGE),
    "BatchNorm": (lambda: [nn.BatchNorm2d(WIDTH)], IMAGE),
    "GroupNorm": (lambda: [nn.GroupNorm(2, WIDTH)], IMAGE),
    "LSTM": (lambda: [Recurrent()], SEQUENCE),
    # The gradient of an embedding does not depend on its weights; that of a layer after it does.
    "Embedding": (lambda: [nn.Embedding(9, WIDTH), nn.Linear(WIDTH, WIDTH)], None),
    "MultiheadAttention": (lambda: [Attention()], SEQUENCE),
}
OPTIMIZERS = {
    "AdamW": {"name": "adamw"},
    "fused AdamW": {"name": "adamw", "fused": True},
    "SGD with momentum": {"name": "sgd", "momentum": 0.9},
    "NAdam": {"name": "nadam"},
}
FORMS = ["eager", "exported"]


@lru_cache
def program(layer) -> StageProgram:
    """The whole of a model of this layer as one stage's program, captured as the planner does it."""
    build, shape = LAYERS[layer]
    with torch.device("meta"):
        model = Replaceable(*build())
    captured = capture(model, (batch(shape, seed=0).detach(),))
    return captured.span(0, len(captured.units))


def make(layer, form="eager"):
    build, shape = LAYERS[layer]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = Replaceable(*build())
        for parameter in module.parameters():  # norms begin at one and zero, which hides faults
            parameter.data += 0.3 * torch.randn_like(parameter)
    if form == "exported":
        module = StageModule(program(layer), module.state_dict())
        assert isinstance(module, StageModule)
    return module, shape


def batch(shape, seed):
    generator = torch.Generator().manual_seed(seed)
    if shape is None:
        return torch.randint(9, (3, 4), generator=generator)
    return torch.randn(shape, generator=generator).requires_grad_()


def loss_of(module, x):
    output = module(x)
    if isinstance(module, StageModule):
        (output,) = output
    return (output * torch.linspace(-1, 1, output.numel()).reshape(output.shape)).pow(3).sum()


def expected_gradients(module, shape, seed):
    """What a backward right after the forward gives, from a copy of the module."""
    reference, x = copy.deepcopy(module), batch(shape, seed)
    for parameter in reference.parameters():
        parameter.grad = None
    loss_of(reference, x).backward()
    return {name: p.grad for name, p in reference.named_parameters()}, x.grad


def same(mine, other):
    return mine is other or (mine is not None and other is not None and torch.equal(mine, other))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("form", FORMS)
def test_backward_uses_the_weights_of_its_forward(form, layer, optimizer):
    module, shape = make(layer, form)
    weights = VersionedWeights(module, OptimizerConfig(lr=0.1, **OPTIMIZERS[optimizer]))

    def update(seed):
        parameters = weights.current()
        loss_of(module, batch(shape, seed)).backward()
        weights.collect(parameters)
        weights.step(0.1, copy=True)

    update(seed=10)
    expected, expected_x = expected_gradients(module, shape, seed=0)
    x = batch(shape, seed=0)
    loss, parameters = loss_of(module, x), weights.current()
    before = {name: p.detach().clone() for name, p in parameters.items()}
    update(seed=11)
    update(seed=12)
    weights.add_correction(weights.names, torch.full_like(weights.flat(), 0.1))
    assert not any(torch.equal(p, before[name]) for name, p in module.named_parameters())
    loss.backward()
    weights.collect(parameters)
    assert all(torch.equal(p, before[name]) for name, p in parameters.items())
    assert {name: same(parameters[name].grad, grad) for name, grad in expected.items()} == dict.fromkeys(expected, True)
    assert same(x.grad, expected_x)


CHANGES = {
    "step": lambda weights, vector: weights.step(0.1),
    "add_correction": lambda weights, vector: weights.add_correction(weights.names, vector),
    "adopt": lambda weights, vector: weights.adopt(weights.names, vector),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("form", FORMS)
def test_every_way_of_changing_weights_leaves_a_live_graph_alone(form, layer, change):
    module, shape = make(layer, form)
    weights = VersionedWeights(module, OptimizerConfig(name="sgd", lr=0.1))
    first = weights.current()
    loss_of(module, batch(shape, seed=10)).backward()
    weights.collect(first)
    expected, expected_x = expected_gradients(module, shape, seed=0)
    x = batch(shape, seed=0)
    loss, before = loss_of(module, x), weights.flat()
    sofar = {name: p.grad.clone() for name, p in first.items() if p.grad is not None}
    if change == "step":
        sofar = {}
    CHANGES[change](weights, torch.full_like(before, 0.1))
    assert not torch.equal(weights.flat(), before)
    loss.backward()
    weights.collect(first)
    for name, parameter in first.items():
        wanted = expected[name] + sofar[name] if name in sofar else expected[name]
        assert torch.equal(parameter.grad, wanted), name
    assert same(x.grad, expected_x)


def backward_after(layer, form, change):
    """Whether a backward is right when `change` was done to the parameters after the forward."""
    module, shape = make(layer, form)
    expected, expected_x = expected_gradients(module, shape, seed=0)
    x = batch(shape, seed=0)
    loss = loss_of(module, x)
    change(module)
    loss.backward()
    return all(same(p.grad, expected[n]) for n, p in module.named_parameters()) and same(x.grad, expected_x)


def change_in_place(module):
    for parameter in module.parameters():
        parameter.data.add_(0.1)


def swap_data(module):
    for parameter in module.parameters():
        parameter.data = parameter.data + 0.1


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("form", FORMS)
def test_with_no_change_the_comparison_passes(form, layer):
    assert backward_after(layer, form, lambda module: None)


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("form", FORMS)
def test_changing_in_place_is_silently_wrong(form, layer):
    assert not backward_after(layer, form, change_in_place)


@pytest.mark.parametrize("layer", ["LayerNorm", "RMSNorm", "Conv", "BatchNorm", "GroupNorm", "LSTM"])
@pytest.mark.parametrize("form", FORMS)
def test_swapping_the_data_is_silently_wrong(form, layer):
    assert not backward_after(layer, form, swap_data)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("form", FORMS)
def test_stepping_the_modules_own_parameters_raises_or_is_wrong(form, layer, optimizer):
    arguments = {key: value for key, value in OPTIMIZERS[optimizer].items() if key != "name"}
    kind = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD, "nadam": torch.optim.NAdam}

    def step(module):
        for parameter in module.parameters():
            parameter.grad = torch.ones_like(parameter)
        kind[OPTIMIZERS[optimizer]["name"]](module.parameters(), lr=0.1, **arguments).step()
        for parameter in module.parameters():
            parameter.grad = None

    try:
        right = backward_after(layer, form, step)
    except RuntimeError as error:
        assert "modified by an inplace operation" in str(error)  # noqa: PT017 - either outcome is a failure
        return
    assert not right
