"""Which parameters belong to which node of the frontier."""

import pytest
import torch
from torch import nn

from ravnest.stage.split_backward import NotSplittable, frontier_of


def groups(layer, x, output=None):
    end = (layer(x) if output is None else output).sum()
    frontier = frontier_of(end.grad_fn, [x], dict(layer.named_parameters()))
    found = frontier.find(end.grad_fn)
    assert [tuple(node.name() for node in nodes) for nodes, _ in found] == [kinds for _, kinds, _ in frontier.groups]
    return {tuple(sorted(names)): [node.name() for node in nodes] for nodes, names in found}


def test_each_layer_has_its_own_node():
    layer, x = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.ReLU()), torch.randn(2, 4).requires_grad_()
    assert groups(layer, x) == {
        ("0.bias", "0.weight"): ["AddmmBackward0"],
        ("1.bias", "1.weight"): ["NativeLayerNormBackward0"],
    }


def test_nodes_that_share_a_parameter_are_one_group():
    layer, x = nn.Linear(4, 4), torch.randn(2, 4).requires_grad_()
    assert groups(layer, x, layer(x).tanh() + layer(x).sigmoid()) == {("bias", "weight"): ["AddmmBackward0"] * 2}


def test_three_in_a_row_that_share_with_the_next_are_one_group():
    layer, x = nn.ParameterDict({name: torch.ones(3) for name in "abc"}), torch.randn(3).requires_grad_()
    a, b, c = layer.values()
    both = groups(layer, x, (x * (a + b)) + (x * c) + (x * (b * c)))
    assert both == {("a", "b", "c"): ["MulBackward0"] * 3}


def test_a_parameter_far_from_the_path_belongs_to_where_it_enters():
    layer, x = nn.Embedding(5, 3), torch.randn(2, 3).requires_grad_()
    mixed = x + (layer(torch.tensor([0, 1])) * 2).tanh()
    assert groups(layer, x, mixed.exp()) == {("weight",): ["AddBackward0"]}


def test_what_has_no_frontier_is_refused():
    layer, x = nn.Linear(4, 4), torch.randn(2, 4).requires_grad_()
    with pytest.raises(NotSplittable, match="does not depend"):
        groups(layer, x, layer(torch.ones(2, 4)))
    with pytest.raises(NotSplittable, match="used twice"):
        groups(layer, x, layer(layer(x)))
    with pytest.raises(NotSplittable, match="used twice"):
        groups(layer, x, layer(x).tanh() @ layer.weight.T)
