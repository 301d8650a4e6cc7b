"""What an optimizer keeps, from the shapes of what it trains."""

import pytest
import torch
from torch import nn

from ravnest.splitting.program import TensorSpec
from ravnest.training.optimizer import OptimizerConfig
from ravnest.training.optimizer_memory import state_bytes, state_bytes_per_parameter_byte
from ravnest.training.weights import VersionedWeights


@pytest.mark.parametrize(
    ("config", "ratio"),
    [
        ({"name": "sgd"}, 0),
        ({"name": "sgd", "momentum": 0.9}, 1),
        ({"name": "rmsprop"}, 1),
        ({"name": "rmsprop", "momentum": 0.9, "centered": True}, 3),
        ({"name": "adamw"}, 2),
        ({"name": "nadam"}, 2),
        ({"name": "adam", "amsgrad": True}, 3),
        ({"name": "adafactor"}, 0),
        ({"name": "soap"}, 2 + 2 * (8 / 32 + 32 / 8)),
        ({"name": "soap", "max_side": 8}, 2 + 2 * 8 / 32),
        ({"name": "soap", "sides": "smaller"}, 2 + 2 * 8 / 32),
    ],
)
def test_state_bytes(config, ratio):
    assert state_bytes_per_parameter_byte(OptimizerConfig(**config)) == ratio


def test_of_several_groups_the_one_with_most_counts():
    config = OptimizerConfig(name="muon", groups=[{"match": "*.bias", "name": "adamw"}])
    assert state_bytes_per_parameter_byte(config) == 2


class Shapes(nn.Module):
    """A matrix, a vector, a convolution's kernel, a number, one side of 1, one of float64, one of bfloat16."""

    def __init__(self):
        super().__init__()
        shapes = {"matrix": (30, 20), "vector": (9,), "kernel": (4, 3, 5, 5), "number": (), "column": (12, 1)}
        for name, shape in shapes.items():
            setattr(self, name, nn.Parameter(torch.ones(shape)))
        self.wide = nn.Parameter(torch.ones(6, 5, dtype=torch.float64))
        self.narrow = nn.Parameter(torch.ones(8, 6, dtype=torch.bfloat16))
        self.frozen = nn.Parameter(torch.ones(50), requires_grad=False)

    def set_parameter(self, name, parameter):
        setattr(self, name, parameter)


@pytest.mark.parametrize(
    "config",
    [
        {"name": "adamw"},
        {"name": "adafactor"},
        {"name": "adam", "amsgrad": True},
        {"name": "sgd"},
        {"name": "sgd", "momentum": 0.9},
        {"name": "adagrad"},
        {"name": "rprop"},
        {"name": "asgd"},
        {"name": "lamb"},
        {"name": "soap"},
        {"name": "soap", "max_side": 20},
        {"name": "soap", "max_side": 5},
        {"name": "soap", "sides": "smaller"},
        {"name": "adamw", "groups": [{"match": "matrix", "name": "adafactor"}]},
    ],
)
def test_it_is_planned_to_the_byte(config):
    module, section = Shapes(), OptimizerConfig(**config)
    specs = [TensorSpec(name, tuple(p.shape), p.dtype, p.requires_grad) for name, p in module.named_parameters()]
    weights = VersionedWeights(module, section)
    parameters = weights.current()
    for parameter in parameters.values():
        parameter.grad = torch.ones_like(parameter)
    weights.collect(parameters)
    weights.step(1e-3)
    assert state_bytes(section, specs) == weights.optimizer_bytes


def test_of_more_dimensions_than_are_tried_nothing_is_claimed():
    shape = (2,) * 7
    assert state_bytes(OptimizerConfig(), [TensorSpec("w", shape, torch.float32, True)]) is None
    assert state_bytes(OptimizerConfig(), [TensorSpec("w", shape, torch.float32, False)]) == 0


def test_what_is_counted_of_a_large_matrix_is_never_made():
    config, spec = OptimizerConfig(name="soap", sides="smaller"), TensorSpec("w", (10**8, 1024), torch.float32, True)
    assert state_bytes(config, [spec]) == 4 * (2 * 1024 * 10**8 + 2 * 1024**2 + 1)
