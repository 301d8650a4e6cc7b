import pytest
import torch
from torch import nn

from ravnest.training.optimizer import uncompiled

OPTIMIZERS = {
    "AdamW": {},
    "Adam": {"fused": True},
    "SGD": {"momentum": 0.9, "nesterov": True},
    "NAdam": {},
    "RMSprop": {"centered": True},
    "Adagrad": {},
    "Adafactor": {},
    "RAdam": {"weight_decay": 0.1},
}


def trained(chosen, arguments):
    torch.manual_seed(0)
    layer = nn.Linear(6, 5)
    optimizer = chosen(layer.parameters(), lr=1e-2, **arguments)
    for turn in range(5):
        torch.manual_seed(turn)
        layer(torch.randn(3, 6)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    again = chosen(layer.parameters(), lr=1e-2, **arguments)
    again.load_state_dict(optimizer.state_dict())
    return [*layer.parameters()], again.state_dict()["state"]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_it_trains_as_torchs_own_bit_for_bit(name):
    chosen = getattr(torch.optim, name)
    weights, state = trained(chosen, OPTIMIZERS[name])
    ours, our_state = trained(uncompiled(chosen), OPTIMIZERS[name])
    assert all(torch.equal(a, b) for a, b in zip(ours, weights, strict=True))
    assert our_state.keys() == state.keys()
    assert all(
        torch.equal(our_state[0][key], value) for key, value in state[0].items() if isinstance(value, torch.Tensor)
    )
    assert not ours[0].grad_fn  # no step was recorded
    assert issubclass(uncompiled(chosen), chosen)
    assert uncompiled(chosen) is uncompiled(chosen)
