"""A trace has each operator that the forward calls, what it reads, and the module that calls it."""

import pytest
import torch
from torch import Tensor, nn

from ravnest.errors import ModelNotSplittable
from ravnest.splitting.forward_trace import trace
from ravnest.splitting.program import Grad, Value, Weight


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 4)
        self.table = torch.ones(4)

    def forward(self, x: Tensor, shift: Tensor) -> dict[str, Tensor]:
        with torch.no_grad():
            scale = x.sum()
        first, second = torch.split(self.linear(x) + self.table, 2, dim=1)
        return {"out": second * scale + shift + torch.tensor(3.0), "first": first}


def test_what_a_forward_calls() -> None:
    with torch.device("meta"):
        model = Model()
    found = trace(model, (torch.ones(2, 3),), {"shift": torch.ones(2, 2)})
    operations = found.graph.operations
    assert found.inputs == ("input.0", "input.shift")
    summed = next(each for each in operations if each.target == "aten.sum.default")
    assert summed.args == (Value("input.0"),)
    assert summed.contexts == (Grad(False),)
    multiplied = next(each for each in operations if each.target == "aten.addmm.default")
    assert multiplied.scope == "linear"
    assert multiplied.contexts == (Grad(True),)
    assert Weight("linear.bias") in multiplied.references()
    added = next(each for each in operations if Weight("table") in each.references())
    assert added.scope == ""
    parts = [each for each in operations if each.target == "part"]
    assert [each.args[1] for each in parts] == [0, 1]
    assert found.graph.outputs[-1] == Value(parts[0].name)
    assert [value.item() for value in found.constants.values()] == [3.0]


def test_training_and_evaluation_differ() -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5))
    counts = [len(trace(model.train(mode), (torch.ones(2, 3),), {}).graph.operations) for mode in (True, False)]
    assert counts[0] > counts[1]


def test_what_no_comparison_could_judge_is_refused() -> None:
    class Drawing(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.bernoulli(x, generator=torch.Generator())

    with pytest.raises(ModelNotSplittable, match="Generator"):
        trace(Drawing(), (torch.ones(2, 3),), {})
