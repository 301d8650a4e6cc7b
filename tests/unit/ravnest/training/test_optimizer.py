import pytest
import torch

from ravnest.errors import InvalidInput
from ravnest.training.optimizer import OptimizerConfig, build_optimizer, state_bytes_per_parameter_byte

OFFERED = [
    "adadelta", "adafactor", "adagrad", "adam", "adamax", "adamw", "asgd", "muon", "nadam", "radam", "rmsprop",
    "rprop", "sgd", "soap",
]  # fmt: skip


@pytest.mark.parametrize("name", OFFERED)
def test_every_offered_optimizer_makes_a_step(name):
    parameter = torch.nn.Parameter(torch.ones(3, 4))
    optimizer = build_optimizer(OptimizerConfig(name=name, lr=0.1), [("w", parameter)])
    parameter.grad = torch.rand(3, 4, generator=torch.Generator().manual_seed(0)) + 0.1
    optimizer.step()
    assert not torch.equal(parameter, torch.ones(3, 4))
    assert all(isinstance(value, torch.Tensor) for value in optimizer.state[parameter].values())


def test_names_are_read_in_any_case_and_arguments_reach_torch():
    config = OptimizerConfig(name="ADAMW", lr=0.1, betas=[0.8, 0.9], fused=True)
    optimizer = build_optimizer(config, [("w", torch.nn.Parameter(torch.ones(2)))])
    assert isinstance(optimizer, torch.optim.AdamW)
    assert optimizer.defaults["betas"] == (0.8, 0.9)
    assert optimizer.defaults["fused"] is True


def test_an_argument_that_may_be_null():
    assert OptimizerConfig(name="adafactor", eps=[None, 0.01]).arguments == {"eps": (None, 0.01)}


def test_a_parameter_that_the_class_cannot_train():
    vector = torch.nn.Parameter(torch.ones(3))
    with pytest.raises(InvalidInput, match=r"optimizer: torch.optim.Muon refuses: .*2D"):
        build_optimizer(OptimizerConfig(name="muon"), [("bias", vector)])


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
    ],
)
def test_state_bytes(config, ratio):
    assert state_bytes_per_parameter_byte(OptimizerConfig(**config)) == ratio
