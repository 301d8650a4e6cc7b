"""A stage is told which module registers an operator that is not torch's own."""

import pytest
import torch
from torch import Tensor, nn

from ravnest.errors import ModelNotSplittable
from ravnest.splitting.operators import registering_modules
from tests.unit.ravnest.splitting.models import Case, captured


@torch.library.custom_op("ravnest_test::doubled", mutates_args=())
def doubled(x: Tensor) -> Tensor:
    return x * 2


doubled.register_fake(torch.empty_like)
doubled.register_autograd(lambda context, gradient: gradient * 2)


def test_the_program_of_each_stage_names_the_modules_it_needs() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(doubled(self.a(x)).relu())

    model = captured(Case(Model, (torch.ones(3, 4),)))
    assert [bool(model.span(unit, unit + 1).imports) for unit in range(2)].count(True) == 1
    assert model.span(0, 2).imports == (__name__,)


def test_torchs_own_operators_need_nothing_and_unknown_ones_are_refused() -> None:
    assert registering_modules(["aten.add.Tensor", "math:ceil"]) == ()
    with pytest.raises(ModelNotSplittable, match="operator nowhere::op"):
        registering_modules(["nowhere.op.default"])
