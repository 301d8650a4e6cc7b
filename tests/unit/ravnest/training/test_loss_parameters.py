"""What a loss brings to the last stage, and what no stage could hold."""

import pytest
import torch
from torch import nn

from ravnest.errors import InvalidInput
from ravnest.training.loss_parameters import loss_parameters, loss_specs, loss_weights, module_with_parameters
from ravnest.training.losses import Loss


def loss_of(module):
    return Loss("own", module, module, module if isinstance(module, nn.Module) else None)


def test_parameters_and_saved_buffers_have_the_prefix():
    module = nn.BatchNorm1d(3)
    module.register_buffer("scratch", torch.zeros(1), persistent=False)
    module.bias.requires_grad_(False)
    loss = loss_of(module)
    parameters, buffers = loss_specs(loss)
    assert [(spec.name, spec.shape, spec.requires_grad) for spec in parameters] == [
        ("loss.weight", (3,), True),
        ("loss.bias", (3,), False),
    ]
    assert [spec.name for spec in buffers] == [
        "loss.running_mean",
        "loss.running_var",
        "loss.num_batches_tracked",
    ]
    assert loss_weights(loss).keys() == {spec.name for spec in (*parameters, *buffers)}
    assert list(loss_parameters(loss)) == ["loss.weight", "loss.bias"]


@pytest.mark.parametrize("made", [nn.CrossEntropyLoss(weight=torch.ones(3)), torch.sum], ids=["module", "function"])
def test_a_loss_without_parameters_brings_nothing(made):
    loss = loss_of(made)
    assert (module_with_parameters(loss), loss_specs(loss), loss_weights(loss)) == (None, ((), ()), {})
    assert module_with_parameters(None) is None


def test_what_no_stage_could_hold_is_refused():
    with pytest.raises(InvalidInput, match=r"^loss: its parameter 'weight' has no shape yet"):
        module_with_parameters(loss_of(nn.LazyLinear(3)))
    twice = nn.Linear(3, 3, bias=False)
    twice.other = twice.weight
    with pytest.raises(InvalidInput, match=r"^loss: its parameters 'weight' and 'other' are one"):
        module_with_parameters(loss_of(twice))
