"""A buffer that a model counts with leaves places to cut, and counts as in the model itself."""

from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from ravnest.splitting.assignments import assign_early, count_apart
from ravnest.splitting.program import Operation, TensorSpec, Value, Weight
from tests.unit.ravnest.splitting.models import Case, build, captured, run_eager, run_stages, seeded


class Counting(nn.Module):
    """Counts its calls in place, before, between and behind the places where it reads the count."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(4, 4) for _ in range(3))
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.register_buffer("seen", torch.zeros(2))
        self.register_buffer("only_counted", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        before = self.calls
        self.calls += 1
        self.only_counted += 1
        x = torch.relu(self.a(x)) + self.calls
        self.calls.add_(2)
        self.seen *= 0.5
        x = torch.relu(self.b(x)) + self.seen.sum()
        return self.c(x) / self.calls + before


CASE = Case(Counting, (torch.ones(3, 4),))


@pytest.mark.parametrize("training", [True, False])
def test_a_model_that_counts_its_calls_is_cut_and_counts_alike(training: bool) -> None:
    model = captured(CASE)
    assert len(model.units) == 3
    found = run_stages(build(model, CASE, [0, 1, 2, 3]), CASE.args, training)
    found.assert_equal(run_eager(seeded(CASE), CASE.args, {}, training, {"calls", "seen", "only_counted"}))
    assert int(found.buffers["calls"]) == 3


ADD = "aten.add_.Tensor"
COUNTER = {"n": TensorSpec("n", (), torch.int64, False)}


def test_what_takes_a_view_of_a_counter_or_returns_it_keeps_it_in_place() -> None:
    plain = [Operation("x", ADD, (Weight("n"), 1)), Operation("y", "aten.mul.Tensor", (Value("x"), 2))]
    counted = [op.target for op in count_apart(plain, COUNTER)]
    assert counted == ["aten.add.Tensor", "aten.mul.Tensor", "aten.copy_.default"]
    viewed = [*plain, Operation("z", "aten.view.default", (Value("x"), (1,)))]
    for operations, outputs in ((viewed, ()), (plain, (Value("x"),))):
        assert count_apart(operations, COUNTER, outputs) == operations


def test_a_number_that_would_change_the_dtype_is_added_in_place() -> None:
    operations = [Operation("x", ADD, (Weight("n"), 0.5)), Operation("y", "aten.mul.Tensor", (Value("x"), 2))]
    assert count_apart(operations, COUNTER) == operations


def test_a_copy_of_a_buffer_onto_itself_is_dropped() -> None:
    changes = [Operation("x", ADD, (Weight("n"), 1)), Operation("y", ADD, (Value("x"), 1))]
    copies = [Operation(f"c{i}", "aten.copy_.default", (Weight("n"), Value(name))) for i, name in enumerate("xy")]
    assert assign_early([*changes, *copies]) == changes
    other = Operation("c", "aten.copy_.default", (Weight("m"), Value("y")))
    assert other in assign_early([*changes, other])


def test_programs_that_neighbour_each_other_send_the_count() -> None:
    model = captured(CASE)
    sent = [[spec.name for spec in model.span(a, b).outputs] for a, b in pairwise(range(4))]
    assert any("add" in name for name in sent[0])
