import pytest
import torch
from torch import nn

from experiments.wire.cuts import as_form, cut, last_modules


class Stages(nn.Module):
    """Four linear blocks, one for each stage."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


@pytest.mark.parametrize(("form", "is_same"), [("float32", True), ("int4", False)])
def test_what_leaves_a_stage_and_its_gradient_take_the_form(form, is_same):
    torch.manual_seed(0)
    model, inputs = Stages(), torch.randn(8, 4)
    plain = model(inputs)
    plain.sum().backward()
    before = model.blocks[0].weight.grad.clone()
    model.zero_grad()
    with cut(last_modules(model), as_form(form)):
        crossed = model(inputs)
        crossed.sum().backward()
    assert torch.equal(crossed, plain) is is_same
    assert torch.equal(model.blocks[0].weight.grad, before) is is_same
    assert torch.allclose(crossed, plain, atol=0.3)
    assert torch.equal(model(inputs), plain)  # the cuts are gone again
    assert list(last_modules(model)) == list(model.blocks[:3])
