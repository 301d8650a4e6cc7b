import pytest
import torch
from torch import nn

from experiments.wire.averaging import averaged, flat, put


@pytest.mark.parametrize("form", ["bfloat16", "int8", "int4"])
def test_what_a_form_loses_is_fed_back(form):
    generator = torch.Generator().manual_seed(0)
    carries = [torch.zeros(300) for _ in range(4)]
    error, worst = torch.zeros(300), []
    for _ in range(40):
        parts = [torch.randn(300, generator=generator) for _ in range(3)]
        error += averaged(parts, carries, form) - torch.stack(parts).mean(0)
        worst.append(error.abs().max().item())
    assert worst[0] > 0
    assert max(worst[20:]) < 3 * max(worst[:5])


def test_a_model_takes_the_vector_that_it_gave():
    one, other = nn.Linear(3, 2), nn.Linear(3, 2)
    put(other, flat(one))
    assert torch.equal(other.weight, one.weight)
    assert torch.equal(other.bias, one.bias)
