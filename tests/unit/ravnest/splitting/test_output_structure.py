"""What a model returns is rebuilt from plain data, and its tensors are known by their paths."""

from collections import OrderedDict
from typing import NamedTuple

import pytest
import torch
from torch.utils._pytree import tree_flatten

from ravnest.errors import InvalidInput, ModelNotSplittable
from ravnest.splitting.output_structure import (
    OutputNode,
    leaf_names,
    leaves_by_path,
    rebuilt,
    shapes_of,
    structure_of,
    tensors_by_path,
)


class Pair(NamedTuple):
    first: object
    second: object


@pytest.mark.parametrize(
    "value",
    [
        3,
        (1, [2, {"a": 3, "b": (4,)}]),
        Pair(1, {"x": 2}),
        OrderedDict([("b", 1), ("a", 2)]),
    ],
    ids=["alone", "nested", "namedtuple", "ordered"],
)
def test_objects_come_back_as_they_were(value):
    leaves, spec = tree_flatten(value)
    found = rebuilt(structure_of(spec, range(len(leaves))), leaves)
    assert found == value
    assert type(found) is type(value)


def test_what_is_not_computed_is_none():
    leaves, spec = tree_flatten({"hidden": 1, "logits": 2})
    assert rebuilt(structure_of(spec, [None, 0]), leaves[1:]) == {"hidden": None, "logits": 2}


def test_a_class_of_transformers_comes_back():
    outputs = pytest.importorskip("transformers.modeling_outputs")
    value = outputs.CausalLMOutput(logits=torch.ones(2), hidden_states=(torch.ones(1), torch.ones(3)))
    leaves, spec = tree_flatten(value)
    found = rebuilt(structure_of(spec, range(len(leaves))), leaves)
    assert type(found) is outputs.CausalLMOutput
    assert found.hidden_states[1] is value.hidden_states[1]
    assert leaf_names(spec) == ["logits", "hidden_states.0", "hidden_states.1"] == list(leaves_by_path(value))


def test_a_class_that_no_stage_could_import_is_refused():
    class Inner(NamedTuple):
        only: object

    with pytest.raises(ModelNotSplittable, match="a class that is defined in a function"):
        structure_of(tree_flatten(Inner(1))[1], [0])
    with pytest.raises(InvalidInput, match="no module 'nowhere_at_all'"):
        rebuilt(OutputNode("named", (0,), "nowhere_at_all:Pair"), [1])


def test_tensors_and_their_shapes_by_path():
    assert list(tensors_by_path({"a": [torch.ones(2), 3], "b": None})) == ["a.0"]
    assert shapes_of(torch.ones(2, 3)) == "(2, 3)"
    assert shapes_of({"a": torch.ones(2), "b": (torch.ones(1),)}) == "a (2,), b.0 (1,)"
    assert shapes_of(3.0) == "float"
