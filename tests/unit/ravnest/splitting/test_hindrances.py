"""What forbids cuts is told with its operation and its line."""

import torch
from torch import Tensor, nn

from tests.unit.ravnest.splitting.models import Case, captured


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(4, 4) for _ in range(3))
        self.register_buffer("state", torch.zeros(4))


def reason(forward: object) -> str:
    Model = type("Model", (Layers,), {"forward": forward})
    model = captured(Case(Model, (torch.ones(3, 4),)))
    assert len(model.units) == 1
    return model.whole_because


def test_a_buffer_that_is_changed_in_place_behind_a_layer_is_named_with_its_line() -> None:
    def forward(self: Layers, x: Tensor) -> Tensor:
        y = self.b(self.a(x + self.state))
        self.state.clamp_(max=0.5)
        return self.c(y) + self.state

    line = forward.__code__.co_firstlineno
    said = reason(forward)
    assert said.startswith("aten.clamp_.default in the model (")
    assert [f"test_hindrances.py:{line + n})" in said for n in (1, 2, 3)] == [True, True, True]


def test_a_model_with_one_layer_and_a_model_that_can_be_cut_say_so() -> None:
    assert reason(lambda self, x: self.a(x)) == "only one operation of it uses parameters"
    Model = type("Model", (Layers,), {"forward": lambda self, x: self.b(self.a(x))})
    assert captured(Case(Model, (torch.ones(3, 4),))).whole_because == ""
