import gc
import weakref

import pytest
import torch
from torch import nn

from ravnest.stage.backward import Root


def outputs_of(layer, x):
    hidden = layer(x)
    return hidden.tanh(), hidden[:, :2] * 3


def test_gradients_are_those_of_autograd_bit_for_bit():
    torch.manual_seed(0)
    layer, x = nn.Linear(4, 5), torch.randn(3, 4, requires_grad=True)
    fed = (torch.randn(3, 5), torch.randn(3, 2))
    torch.autograd.backward(outputs_of(layer, x), fed)
    expected = [x.grad, layer.weight.grad, layer.bias.grad]
    x.grad = layer.weight.grad = layer.bias.grad = None
    Root(outputs_of(layer, x)).feed(fed).backward()
    assert all(torch.equal(a, b) for a, b in zip([x.grad, layer.weight.grad, layer.bias.grad], expected, strict=True))


def test_outputs_are_not_kept_and_the_graph_goes_with_its_root():
    layer = nn.Linear(4, 5)
    output = layer(torch.ones(3, 4, requires_grad=True))
    gone = weakref.ref(output)
    root = Root([output])
    del output
    assert gone() is None
    end = weakref.ref(root.feed(()))
    gc.disable()
    try:
        del root
        assert end() is None  # without a collector: nothing refers to itself
    finally:
        gc.enable()


def test_an_input_that_only_passes_through_gets_its_gradient():
    x = torch.ones(3, requires_grad=True)
    Root([x]).feed([torch.full((3,), 2.0)]).backward()
    assert x.grad.tolist() == [2.0, 2.0, 2.0]


def test_a_gradient_of_another_shape_is_refused():
    x = torch.ones(3, requires_grad=True)
    with pytest.raises(RuntimeError, match="shape"):
        Root([x * 2]).feed([torch.ones(4)]).backward()
