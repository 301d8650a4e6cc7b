import pytest
import torch
from pydantic import ValidationError

from ravnest.errors import InvalidInput
from ravnest.training.optimizer import (
    OptimizerConfig,
    build_optimizer,
    partition,
)

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


GROUPS = [{"match": "*.bias", "weight_decay": 0}, {"match": ["head.*", "*.head.*"], "lr": 0.5}]


def test_the_first_group_that_matches_counts_and_the_rest_is_the_section():
    config = OptimizerConfig(lr=0.1, weight_decay=0.2, clip_norm=1.0, groups=GROUPS)
    found = partition(config, ["body.weight", "body.bias", "head.bias", "head.weight"])
    assert [names for _, names in found] == [["body.bias", "head.bias"], ["head.weight"], ["body.weight"]]
    assert [(one.lr, one.arguments["weight_decay"], one.groups) for one, _ in found] == [
        (0.1, 0, ()),
        (0.5, 0.2, ()),
        (0.1, 0.2, ()),
    ]
    assert partition(config, []) == []


@pytest.mark.parametrize(
    "arguments", [{"ns_steps": 100}, {"ns_steps": 1.5}, {"ns_coefficients": [1, None, 2]}], ids=str
)
def test_an_argument_at_which_a_class_looks_only_in_its_step(arguments):
    with pytest.raises(ValidationError, match=r"torch\.optim\.Muon refuses: "):
        OptimizerConfig(name="muon", **arguments)
    with pytest.raises(ValidationError, match=r"groups\.0\n.*torch\.optim\.Muon refuses: "):
        OptimizerConfig(groups=[{"match": "*", "name": "muon", **arguments}])


def test_a_group_with_another_optimizer_takes_none_of_the_arguments():
    config = OptimizerConfig(name="muon", momentum=0.9, groups=[{"match": "*.bias", "name": "adamw", "eps": 1e-6}])
    (bias, _), (matrix, _) = partition(config, ["w", "w.bias"])
    assert (bias.name, bias.arguments, matrix.arguments) == ("adamw", {"eps": 1e-6}, {"momentum": 0.9})


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        ([{"weight_decay": 0}], "groups.0.match"),
        ([{"match": []}], "groups.0.match"),
        ([{"match": "*", "weight_dekay": 0}], r"groups\.0\.weight_dekay\n.*AdamW has no such argument"),
        ([{"match": "*", "name": "adamm"}], r"groups\.0\.name\n.*no optimizer 'adamm'"),
        ([{"match": "*", "lr": -1}], r"groups\.0\.lr\n.*greater than 0"),
        ([{"match": "*", "schedule": {"name": "cosine"}}], r"groups\.0\n.*a group has no schedule of its own"),
    ],
)
def test_groups_that_cannot_be_meant(groups, said):
    with pytest.raises(ValidationError, match=said):
        OptimizerConfig(groups=groups)
