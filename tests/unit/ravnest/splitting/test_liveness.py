"""What is alive, what must stay together, and what every stage can make itself."""

import pytest
import torch
from torch import Tensor, nn

from ravnest.splitting.liveness import GraphLayout
from tests.unit.ravnest.splitting.models import Case, captured


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(4, 4) for _ in range(3))
        self.register_buffer("state", torch.zeros(4))


def laid_out(forward: object, x: Tensor | None = None) -> GraphLayout:
    Model = type("Model", (Layers,), {"forward": forward})
    return captured(Case(Model, (torch.ones(3, 4) if x is None else x,))).train


def targets(layout: GraphLayout, span: tuple[int, int]) -> list[str]:
    return [op.target.split(".")[1] for op in layout.operations[span[0] : span[1] + 1]]


def test_a_change_in_place_is_joined_to_what_it_changes() -> None:
    layout = laid_out(lambda self, x: self.c(self.b(self.a(x)).relu_()))
    assert [targets(layout, span) for span in layout.joined] == [["linear", "relu_"]]


def test_a_change_through_a_view_is_joined_up_to_it_and_no_further() -> None:
    def forward(self: Layers, x: Tensor) -> Tensor:
        y = self.a(x)
        y[:, 0] = 0.0
        return self.c(self.b(y))

    layout = laid_out(forward)
    (span,) = layout.joined
    assert targets(layout, span)[0] == "linear"
    assert "linear" not in targets(layout, span)[1:]


def test_a_buffer_that_changes_has_one_owner() -> None:
    def forward(self: Layers, x: Tensor) -> Tensor:
        y = self.b(self.a(x) + self.state)
        self.state.clamp_(max=0.5)
        return self.c(y)

    layout = laid_out(forward)
    first, last = layout.anchored["state"]
    assert (layout.operations[first].target, layout.operations[last].target) == (
        "aten.add.Tensor",
        "aten.clamp_.default",
    )
    assert layout.sides("state", first) == {"behind"}
    assert layout.sides("state", last) == {"before", "behind"}
    assert layout.sides("state", last + 1) == {"before"}
    assert layout.sides("no such weight", last) == frozenset()


def test_an_assigned_buffer_is_written_as_early_as_it_can_be() -> None:
    def forward(self: Layers, x: Tensor) -> Tensor:
        y = self.a(x)
        self.state = self.state + 1
        return self.c(self.b(y))

    layout = laid_out(forward)
    first, last = layout.anchored["state"]
    assert last - first == 1
    assert layout.operations[last].target == "aten.copy_.default"


def test_inputs_that_are_changed_stay_in_the_first_unit() -> None:
    layout = laid_out(lambda self, x: self.c(self.b(self.a(x)) + x.add_(1)))
    assert layout.joined[0][0] == 0
    assert layout.operations[layout.joined[0][1]].target == "aten.add_.Tensor"


def test_random_and_changing_operations_are_not_free() -> None:
    def forward(self: Layers, x: Tensor) -> Tensor:
        free = torch.arange(4, device=x.device) * 2 + x.shape[0]
        rand = torch.rand(4, device=x.device)
        made = torch.zeros(4, device=x.device)
        made.add_(1.0)
        return self.c(self.b(self.a(x)) + free + rand + made)

    layout = laid_out(forward)
    by_name = {op.name: op.target for op in layout.operations}
    assert sorted(by_name[name] for name in layout.free) == [
        "aten.add.Tensor",
        "aten.arange.default",
        "aten.mul.Tensor",
    ]


def test_alive_values_end_with_their_last_use() -> None:
    layout = laid_out(lambda self, x: self.c(self.b(self.a(x)) + x))
    alive = [tuple(item.name for item in items) for items in layout.alive]
    assert alive == [("x",), ("x", "linear"), ("x", "linear_1"), ("add",), ("linear_2",)]


def test_lists_of_tensors_cannot_be_sent() -> None:
    layout = laid_out(lambda self, x: self.c(torch.cat(self.a(x).split(2, 1), 1)))
    position = next(i for i, op in enumerate(layout.operations) if "split" in op.target) + 1
    assert not all(layout.can_travel(item) for item in layout.alive[position])


def test_every_position_of_every_graph_is_described() -> None:
    layout = laid_out(lambda self, x: self.c(self.b(self.a(x))))
    assert len(layout.alive) == len(layout.operations) + 1
    with pytest.raises(IndexError):
        layout.alive[len(layout.operations) + 1]
