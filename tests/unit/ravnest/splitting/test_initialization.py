"""Weights are the same whoever makes them, and nobody makes more than its own."""

import pickle
from dataclasses import replace
from functools import cache
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from ravnest.errors import InvalidInput
from ravnest.splitting import Initialization, record
from ravnest.splitting.initialization import NamedDraw, seed_of
from tests.unit.ravnest.splitting.models import CASES, Case, captured
from tests.unit.ravnest.splitting.test_model_source import llama

FAMILIES = {
    **{name: CASES[name] for name in ("gpt", "cnn", "recurrent", "masked", "shared")},
    "llama": Case(llama, (torch.arange(3 * 8).view(3, 8) % 50,)),
}


@cache
def recorded(family: str) -> Initialization:
    return record(FAMILIES[family].make, 3)


def equal(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


@pytest.mark.parametrize("family", FAMILIES)
def test_any_cut_gives_the_same_weights_bit_for_bit(family: str) -> None:
    model = captured(FAMILIES[family])
    count = len(model.units)
    whole = recorded(family).make(3)
    for cuts in ([0, count], [0, count // 2, count], list(range(count + 1))):
        for begin, end in pairwise(cuts):
            specs = model.span(begin, end).weight_specs
            names = [spec.name for spec in specs]
            made = pickle.loads(pickle.dumps(recorded(family).only(names))).make(3)
            assert made.keys() == set(names)
            assert all(torch.equal(made[name], whole[name]) for name in names)
            assert all((tuple(made[s.name].shape), made[s.name].dtype) == (s.shape, s.dtype) for s in specs)
    drawn = [name for name, tensor in whole.items() if tensor.is_floating_point() and tensor.unique().numel() > 9]
    other = recorded(family).make(4)
    assert drawn
    assert not any(torch.equal(other[name], whole[name]) for name in drawn if name in recorded(family).parameters)


class _Counted(TorchDispatchMode):
    """Counts the bytes of the memory that operators take."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        returned = func(*args, **(kwargs or {}))
        if str(func).startswith("aten.empty"):
            self.bytes += returned.untyped_storage().nbytes()
        return returned


def test_a_stage_makes_its_own_weights_and_no_others() -> None:
    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(64, 64, bias=False) for _ in range(10))

    made = record(Deep, 0).only(["layers.3.weight"])
    assert len(made.steps) == 2  # memory, and the draw that fills it
    with _Counted() as counted:
        made.make(0)
    assert 64 * 64 * 4 <= counted.bytes < 2 * 64 * 64 * 4


def test_what_was_overwritten_is_not_made_again() -> None:
    class Twice(nn.Linear):
        def __init__(self) -> None:
            super().__init__(4, 4)
            nn.init.normal_(self.weight)

    steps = record(Twice, 0).only(["weight"]).steps
    assert [step.target.split(".")[1] for step in steps] == ["empty", "normal_"]


def test_the_name_decides_what_is_drawn_and_other_layers_do_not() -> None:
    def layers(count: int) -> nn.Module:
        return nn.ModuleDict({f"layer{index}": nn.Linear(3, 3) for index in reversed(range(count))})

    few, many = (record(lambda count=count: layers(count), 0).make(7) for count in (2, 5))  # type: ignore[misc]
    assert all(torch.equal(few[name], many[name]) for name in few)
    assert not torch.equal(many["layer0.weight"], many["layer1.weight"])


def test_seeds_are_the_same_on_every_machine() -> None:
    assert seed_of(3, NamedDraw("a.weight", 0)) == 12888790905077782065
    assert len({seed_of(*given) for given in ((3, NamedDraw("a", 1)), (3, NamedDraw("a", 0)), (31, NamedDraw("", 1)))})


def test_making_leaves_the_generator_and_the_threads_alone() -> None:
    torch.manual_seed(5)
    expected, threads = torch.rand(1), torch.get_num_threads()
    torch.manual_seed(5)
    recorded("gpt").make(3)
    assert torch.equal(torch.rand(1), expected)
    assert torch.get_num_threads() == threads


def test_memory_that_nobody_fills_is_the_same_everywhere() -> None:
    class Unfilled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.empty(7))

    assert not record(Unfilled, 0).make(0)["weight"].any()


def test_only_what_is_not_filled_at_once_is_zeroed_first(monkeypatch: pytest.MonkeyPatch) -> None:
    class Made(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.filled = nn.Parameter(torch.empty(5, 7).normal_())
            self.partly = nn.Parameter(torch.empty(2, 7))
            self.read_before = nn.Parameter(torch.empty(3, 7))
            with torch.no_grad():
                self.partly[0].fill_(1.0)
                self.copied = nn.Parameter(self.read_before + 1.0)
                self.read_before.normal_()

    zeroed: list[tuple[int, ...]] = []
    zero = Tensor.zero_
    recorded_steps = record(Made, 0)

    def noting(tensor: Tensor) -> Tensor:
        zeroed.append(tuple(tensor.shape))
        return zero(tensor)

    monkeypatch.setattr(Tensor, "zero_", noting)
    made = recorded_steps.make(0)
    assert sorted(zeroed) == [(2, 7), (3, 7)]
    assert made["partly"].tolist() == [[1.0] * 7, [0.0] * 7]
    assert torch.equal(made["copied"], torch.ones(3, 7))
    assert made["filled"].std() > 0.5


def test_a_name_that_the_model_does_not_have_is_refused() -> None:
    with pytest.raises(InvalidInput, match="the model's constructor makes no 'nothing'"):
        recorded("gpt").only(["nothing"])


def test_another_result_than_the_recorded_one_is_refused() -> None:
    right = recorded("cnn")
    first = right.steps[0]
    position, view = first.made[0]
    wrong = replace(first, made=((position, replace(view, stride=(9, 9))),))
    with pytest.raises(InvalidInput, match="use the same version of torch"):
        replace(right, steps=(wrong, *right.steps[1:])).make(0)


def test_steps_are_told_of_as_they_are_done() -> None:
    told: list[None] = []
    recorded("cnn").make(0, lambda: told.append(None))
    assert len(told) == len(recorded("cnn").steps)
