"""The evaluation graph is cut where the training graph is."""

import torch
from torch import Tensor, nn

from ravnest.splitting.cuts import agrees, pair
from ravnest.splitting.program import Value
from tests.unit.ravnest.splitting.models import Case, captured, captured_case


def test_operations_of_one_mode_only_are_stepped_over() -> None:
    model = captured_case("cnn")
    train, evaluate = ([op.target for op in layout.operations] for layout in (model.train, model.evaluate))
    assert train.count("aten.add_.Tensor") > evaluate.count("aten.add_.Tensor")  # the batch counters
    for position, there in zip(model.positions[1:-1], model.pairing.positions, strict=False):
        assert there <= position
    for position in model.positions:
        there = model.pairing.positions[position]
        assert sum(t == "aten.conv2d.default" for t in train[:position]) == sum(
            t == "aten.conv2d.default" for t in evaluate[:there]
        )


def test_a_value_only_training_has_cannot_be_sent() -> None:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            noise = torch.rand_like(x) if self.training else None
            x = self.layers[1](self.layers[0](x))
            if noise is not None:
                x = x + noise
            return self.layers[2](x)

    model = captured(Case(Noisy, (torch.ones(3, 4),)))
    inside = next(i for i, op in enumerate(model.train.operations) if op.scope == "layers.1")
    assert not agrees(model.train, model.evaluate, model.pairing, inside)
    # Behind the addition the modes meet again: what training adds up is what evaluation has without adding.
    assert [unit.name for unit in model.units] == ["layers.0..layers.1", "layers.2"]
    assert model.pairing.names["add"] == "linear_1"


def test_pairing_follows_modules_not_counts() -> None:
    class Extra(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            x = self.layers[0](x)
            x = self.layers[2](x) if self.training else x
            return self.layers[1](x)

    model = captured(Case(Extra, (torch.ones(3, 4),)))
    pairing = pair(model.train, model.evaluate)
    first, extra, last = (op.name for op in model.train.operations)
    one, two = (op.name for op in model.evaluate.operations)
    assert pairing.names[first] == one
    assert pairing.names[last] == two
    assert pairing.translated(Value(extra)) == Value(one)
    assert pairing.positions == (0, 1, 1, 2)
