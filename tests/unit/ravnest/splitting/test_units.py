"""What each unit owns and costs, and which parameters may lie in several."""

import pytest
from torch import Tensor, nn

from ravnest.splitting import verify
from ravnest.splitting.program import ValueSpec
from tests.unit.ravnest.splitting.models import (
    CASES,
    GPT,
    Case,
    captured,
    captured_case,
    seeded,
)


@pytest.fixture(params=CASES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_units_have_work_and_parameters_and_true_costs(name: str) -> None:
    model = captured_case(name)
    assert all(unit.flops > 0 and unit.parameter_bytes > 0 for unit in model.units)
    reals = CASES[name].make()
    total = sum(p.numel() * p.element_size() for p in reals.parameters())
    assert model.costs.parameter_bytes == total
    samples = CASES[name].args[0].shape[0]
    for index, unit in enumerate(model.units[:-1]):
        outputs = model.span(0, index + 1).outputs
        with_batch = [_bytes(spec, samples) for spec in outputs]
        assert unit.boundary_bytes == -(-sum(with_batch) // samples)
        back = [(spec, size) for size, spec in zip(with_batch, outputs, strict=True) if spec.needs_gradient]
        assert unit.boundary_gradient_bytes == -(-sum(size for _, size in back) // samples)
        narrow = sum(size for spec, size in back if spec.dtype.itemsize == 2)
        assert unit.boundary_narrow_bytes == -(-narrow // samples)
    assert model.units[-1].boundary_bytes == 0


def _bytes(spec: ValueSpec, samples: int) -> int:
    size = spec.dtype.itemsize
    for dim in spec.shape:
        size *= samples if dim is None else dim
    return size


def test_a_tied_parameter_belongs_to_its_first_unit_and_later_ones_borrow_it() -> None:
    case = Case(lambda: GPT(blocks=1, tied=True), CASES["gpt"].args)
    model = captured(case)
    last = len(model.units) - 1
    assert model.tied == {"tokens.weight": (0, last)}
    assert model.aliases == {"tokens.weight": ("head.weight",)}
    table = 11 * 16 * 4
    assert [unit.tied_bytes for unit in model.units] == [table] * last + [0]
    assert [unit.borrowed_bytes for unit in model.units] == [0] * last + [table]
    assert model.costs.parameter_bytes == sum(p.nbytes for p in seeded(case).parameters())
    assert [spec.name for spec in model.span(last, last + 1).borrowed] == ["tokens.weight"]
    assert "tokens.weight" not in model.parameter_names(last, last + 1)
    assert model.span(0, last).borrowed == model.span(0, last + 1).borrowed == ()
    assert verify(model, seeded(case), case.args).largest_difference < 1e-6


def test_a_parameter_used_far_apart_without_a_second_name_is_tied_too() -> None:
    class Functional(GPT):
        def forward(self, ids: Tensor) -> Tensor:
            return nn.functional.linear(super().forward(ids) @ self.head.weight, self.tokens.weight)

    case = Case(lambda: Functional(blocks=1), CASES["gpt"].args)
    model = captured(case)
    assert model.aliases == {}
    assert model.tied.keys() == {"tokens.weight"}
    assert verify(model, seeded(case), case.args).largest_difference < 1e-6


def test_a_frozen_tied_parameter_is_borrowed_and_nothing_of_it_travels() -> None:
    def frozen() -> nn.Module:
        model = GPT(blocks=1, tied=True)
        model.tokens.weight.requires_grad_(False)
        return model

    model = captured(Case(frozen, CASES["gpt"].args))
    assert [unit.tied_bytes for unit in model.units] == [0] * len(model.units)
    (borrowed,) = model.span(1, len(model.units)).borrowed
    assert not borrowed.requires_grad


def test_a_layer_used_twice_close_together_stays_in_one_unit() -> None:
    model = captured_case("shared")
    assert model.units[0].name == "twice"
    assert len(model.units) == 7
