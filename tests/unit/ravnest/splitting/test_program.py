"""Operators by name."""

import operator

import pytest
import torch

from ravnest.errors import ModelNotSplittable
from ravnest.splitting.program import (
    Operation,
    Symbol,
    Value,
    Weight,
    is_random,
    resolve_target,
    weights_read,
    written_arguments,
)


def test_targets_resolve_to_their_functions() -> None:
    assert resolve_target("aten.linear.default") is torch.ops.aten.linear.default
    assert resolve_target("_operator:getitem") is operator.getitem


@pytest.mark.parametrize("target", ["aten.no_such_operator.default", "no_such_namespace.x.default"])
def test_unknown_operators_are_refused_by_name(target: str) -> None:
    with pytest.raises(ModelNotSplittable, match=target):
        resolve_target(target)


def test_functions_of_other_modules_are_refused() -> None:
    with pytest.raises(ModelNotSplittable, match="'system' of 'os'"):
        resolve_target("os:system")


def test_randomness_is_read_from_the_operator() -> None:
    assert is_random("aten.dropout.default")
    assert is_random("aten.bernoulli.default")
    assert not is_random("aten.linear.default")
    assert not is_random("_operator:mul")


def test_references_are_found_in_nested_arguments() -> None:
    call = Operation("y", "aten.lstm.input", (Value("x"), (Weight("w"), Weight("v")), Symbol("x.0"), 3))
    assert list(call.references()) == [Value("x"), Weight("w"), Weight("v"), Symbol("x.0")]
    assert weights_read((call,), (Weight("out"), Value("y"))) == {"w", "v", "out"}


def test_written_arguments_follow_the_schema() -> None:
    assert written_arguments(Operation("y", "aten.add_.Tensor", (Value("x"), Value("z")))) == (Value("x"),)
    out = Operation("y", "aten.add.out", (Value("x"), Value("z")), (("out", Value("o")),))
    assert written_arguments(out) == (Value("o"),)
    assert written_arguments(Operation("y", "aten.add.Tensor", (Value("x"), Value("z")))) == ()
    assert written_arguments(Operation("y", "_operator:add", (1, 2))) == ()
