"""Stages cut anywhere compute what the model computes, bit for bit, in both modes."""

import os
import pickle
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from ravnest.errors import InvalidInput, ModelNotSplittable
from ravnest.splitting import capture, initial_weights, verify
from ravnest.splitting.program import ValueSpec
from ravnest.splitting.stage_module import StageModule
from tests.unit.ravnest.splitting.models import (
    CASES,
    CNN,
    GPT,
    Case,
    FixedBatch,
    Moods,
    build,
    captured,
    captured_case,
    run_eager,
    run_stages,
    seeded,
)

ROOT = Path(__file__).parents[4]


@pytest.fixture(params=CASES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("training", [True, False])
def test_whole_equals_the_eager_model(name: str, training: bool) -> None:
    case, model = CASES[name], captured_case(name)
    (whole,) = build(model, case, [0, len(model.units)])
    found = run_stages([whole], (*case.args, *case.kwargs.values()), training)
    used = {buffer for buffer, _ in whole.named_buffers()}
    expected = run_eager(seeded(case), case.args, case.kwargs, training, used)
    found.buffers = {key: value for key, value in found.buffers.items() if key in expected.buffers}
    found.assert_equal(expected)


@pytest.mark.parametrize("training", [True, False])
def test_stages_cut_anywhere_equal_the_whole(name: str, training: bool) -> None:
    case, model = CASES[name], captured_case(name)
    count = len(model.units)
    inputs = (*case.args, *case.kwargs.values())
    whole = run_stages(build(model, case, [0, count]), inputs, training)
    for cuts in [*([0, cut, count] for cut in range(1, count)), list(range(count + 1))]:
        run_stages(build(model, case, cuts), inputs, training).assert_equal(whole)


def test_short_last_batch(name: str) -> None:
    case, model = CASES[name], captured_case(name)
    assert model.batch_is_dynamic == case.any_batch
    if not case.any_batch:
        return
    count = len(model.units)
    stages = build(model, case, list(range(count + 1)))
    for samples in (1, 3):
        args = tuple(tensor[:samples] for tensor in case.args)
        kwargs = {key: tensor[:samples] for key, tensor in case.kwargs.items()}
        found = run_stages(stages, (*args, *kwargs.values()), False)
        expected = run_eager(seeded(case), args, kwargs, False, set())
        assert [o.shape for o in found.outputs] == [o.shape for o in expected.outputs]
        for left, right in zip(found.outputs, expected.outputs, strict=True):
            torch.testing.assert_close(left, right)


def test_weights_keep_their_names_and_load_into_the_unmodified_model(name: str) -> None:
    case, model = CASES[name], captured_case(name)
    stages = build(model, case, list(range(len(model.units) + 1)))
    saved = {key: tensor for stage in stages for key, tensor in stage.state_dict().items()}
    fresh = case.make()
    assert saved.keys() == fresh.state_dict().keys()
    fresh.load_state_dict(saved, strict=True)
    names = [key for stage in stages for key in stage.program.parameters]
    assert len(names) == len({spec.name for spec in names}), "a parameter has one owner"


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
        back = [size for size, spec in zip(with_batch, outputs, strict=True) if spec.needs_gradient]
        assert unit.boundary_gradient_bytes == -(-sum(back) // samples)
    assert model.units[-1].boundary_bytes == 0


def _bytes(spec: ValueSpec, samples: int) -> int:
    size = spec.dtype.itemsize
    for dim in spec.shape:
        size *= samples if dim is None else dim
    return size


def test_neighbouring_programs_agree_on_what_is_sent(name: str) -> None:
    model = captured_case(name)
    spans = [model.span(a, b) for a, b in pairwise(range(len(model.units) + 1))]
    for left, right in pairwise(spans):
        assert left.outputs == right.inputs


def test_programs_and_captured_models_travel(name: str) -> None:
    case, model = CASES[name], captured_case(name)
    program = pickle.loads(pickle.dumps(model.span(0, 1)))
    stage = StageModule(program, initial_weights(case.make, 0))
    assert stage.program.outputs == model.span(0, 1).outputs
    assert pickle.loads(pickle.dumps(model)).costs == model.costs
    assert len(pickle.dumps(program)) < 50_000


def test_each_transformer_block_offers_two_cuts_at_its_residual_joints() -> None:
    case = Case(lambda: GPT(blocks=3), CASES["gpt"].args)
    model = captured(case)
    width_bytes = 8 * 16 * 4
    joints = [u for u in model.units if u.name.startswith("blocks") and u.boundary_bytes == width_bytes]
    assert len(joints) >= 6


def test_flops_and_saved_bytes_of_a_linear_layer() -> None:
    model = capture(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)), (torch.zeros(5, 4),))
    first, second = model.units
    assert (first.name, second.name) == ("0", "2")
    assert first.flops == 2 * 4 * 6 + 6
    assert second.flops == 2 * 6 * 2
    assert first.saved_bytes == 4 * 4 + 6 * 4  # its input, and what relu returned
    assert second.saved_bytes == 0  # the same memory as relu's result, counted once
    assert first.boundary_bytes == first.boundary_gradient_bytes == 6 * 4


def test_saved_bytes_are_those_of_a_real_forward() -> None:
    for name in ("gpt", "cnn", "masked"):
        case = CASES[name]
        kept: dict[int, int] = {}
        held = []
        real = seeded(case)
        ours = {p.untyped_storage().data_ptr() for p in (*real.parameters(), *real.buffers())}

        def pack(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in ours:  # noqa: B023
                kept[storage.data_ptr()] = storage.nbytes()  # noqa: B023
            held.append(tensor)  # noqa: B023
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            real(*case.args, **case.kwargs)
        counted = sum(unit.saved_bytes for unit in captured_case(name).units) * case.args[0].shape[0]
        assert counted == pytest.approx(sum(kept.values()), rel=0.02)


def test_what_stages_can_make_themselves_is_not_sent() -> None:
    class Causal(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))
            self.register_buffer("scale", torch.full((5, 5), 0.5), persistent=False)

        def forward(self, x: Tensor) -> Tensor:
            mask = torch.ones(x.shape[0], 5, 5, device=x.device).tril() * self.scale
            for layer in self.layers:
                x = layer(mask @ x)
            return x

    case = Case(Causal, (torch.ones(4, 5, 6),))
    model = captured(case)
    assert [[spec.shape for spec in model.span(cut, 3).inputs] for cut in (1, 2)] == [[(None, 5, 6)]] * 2
    assert [spec.name for spec in model.span(1, 2).buffers] == ["scale"]
    assert "scale" not in StageModule(model.span(1, 2), initial_weights(Causal, 0)).state_dict()


def test_masks_inputs_and_sizes_are_passed_along() -> None:
    model = captured_case("masked")
    dtypes = {spec.dtype for spec in model.span(2, 3).inputs}
    assert dtypes == {torch.int64, torch.float32}
    assert [spec.needs_gradient for spec in model.span(2, 3).inputs].count(True) == 1
    pooled = captured_case("pooled")
    (size,) = [spec for spec in pooled.span(len(pooled.units) - 1, len(pooled.units)).inputs if spec.is_int]
    assert (size.dtype, size.shape, size.needs_gradient) == (torch.int64, (), False)


def test_transposed_values_travel_contiguously_without_a_copy_of_another_layout() -> None:
    model = captured_case("cnn")
    orders = {spec.order for index in range(1, len(model.units)) for spec in model.span(0, index).outputs}
    assert (0, 2, 1) in orders


def test_outputs_are_named_by_their_place() -> None:
    assert captured_case("outputs").output_names == ("logits", "more.0", "more.2")
    assert captured_case("gpt").output_names == ("output",)
    last = captured_case("outputs").span(0, len(captured_case("outputs").units))
    assert [spec.needs_gradient for spec in last.outputs] == [True, True, False]


def test_unused_parameters_are_saved_but_not_trained() -> None:
    model = captured_case("moods")
    specs = {spec.name: spec for spec in model.span(0, len(model.units)).parameters}
    assert not specs["idle.weight"].requires_grad
    assert specs["first.weight"].requires_grad
    assert tuple(specs) == tuple(name for name, _ in Moods().named_parameters())


def test_frozen_layers_need_no_gradient_before_them() -> None:
    def make() -> nn.Module:
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
        model[0].requires_grad_(False)
        return model

    model = captured(Case(make, (torch.ones(3, 4),)))
    assert [model.span(0, cut).outputs[0].needs_gradient for cut in (1, 2)] == [False, True]
    assert [unit.boundary_gradient_bytes for unit in model.units] == [0, 16, 0]


def test_batch_of_one_sample_is_enough() -> None:
    model = captured(Case(CNN, (torch.ones(1, 1, 6, 6),)))
    assert model.batch_is_dynamic
    assert model.units == captured(Case(CNN, (torch.ones(2, 1, 6, 6),))).units


def test_models_that_cannot_run_on_meta_are_captured_all_the_same() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(3, 3)
            self.second = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.second(self.first(x) * torch.tensor([1.0, 2.0, 3.0]) + torch.arange(3))

    case = Case(Mixed, (torch.ones(4, 3),))
    model = captured(case)
    assert model.batch_is_dynamic
    run_stages(build(model, case, [0, 1, 2]), case.args, True).assert_equal(
        run_eager(seeded(case), case.args, {}, True, set())
    )


def test_models_that_take_another_path_on_meta_are_captured_as_on_a_cpu() -> None:
    class Chooses(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(3, 3)
            self.second = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x)
            places = (x > 0).float() if x.device.type == "cpu" else (x > 0).int()
            return self.second(x) * torch.histc(places, bins=3, min=0, max=2)

    case = Case(Chooses, (torch.ones(4, 3),))
    run_stages(build(captured(case), case, [0, 1, 2]), case.args, True).assert_equal(
        run_eager(seeded(case), case.args, {}, True, set())
    )


def test_a_model_bound_to_its_batch_size_says_so() -> None:
    assert not captured(Case(FixedBatch, (torch.ones(4, 6),))).batch_is_dynamic
    assert captured_case("gpt").batch_is_dynamic


def test_capture_leaves_the_model_and_its_modes_alone() -> None:
    model = CNN().eval()
    model.blocks[0].train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    capture(model, CASES["cnn"].args)
    assert not model.training
    assert model.blocks[0].conv1.training
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


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


def _flow(model: nn.Module, x: Tensor) -> Tensor:
    return model.first(x) if x.sum() > 0 else -x


def _select(model: nn.Module, x: Tensor) -> Tensor:
    return model.first(x[x[:, 0] > 0])


def _other_outputs(model: nn.Module, x: Tensor) -> object:
    return (model.first(x), x) if model.training else model.first(x)


def _constant_output(model: nn.Module, x: Tensor) -> object:
    return {"y": model.first(x), "scale": 3.0}


def _changes_parameter(model: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        model.first.weight.mul_(0.9)
    return model.first(x)


def _large_constant(model: nn.Module, x: Tensor) -> Tensor:
    return model.first(x) + torch.tensor([[0.5] * 600_000]).sum()


def _no_parameters(model: nn.Module, x: Tensor) -> Tensor:
    return x * 2


@pytest.mark.parametrize(
    ("forward", "message"),
    [
        (_flow, "cannot be captured.*depend on the values"),
        (_select, "depends on data"),
        (_other_outputs, "other tensors in training"),
        (_constant_output, "'scale' is the constant 3.0"),
        (_changes_parameter, "changes the parameter 'first.weight' in place"),
        (_large_constant, "register them as buffers"),
        (_no_parameters, "no parameter"),
    ],
)
def test_refuses_in_one_clear_line(forward: object, message: str, capfd: pytest.CaptureFixture[str]) -> None:
    class Refused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(6, 6)

    Refused.forward = forward  # type: ignore[assignment]
    with pytest.raises(ModelNotSplittable, match=message) as caught:
        captured(Case(Refused, (torch.ones(4, 6),)))
    assert "\n" not in str(caught.value)
    printed = capfd.readouterr()
    assert printed.out == printed.err == ""


def test_refuses_inputs_that_do_not_fit() -> None:
    with pytest.raises(InvalidInput, match="does not take the inputs"):
        capture(GPT(), (torch.zeros(2, 8, dtype=torch.long), torch.zeros(2)))
    with pytest.raises(InvalidInput, match="must be tensors, not list"):
        capture(GPT(), ([1, 2],))  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="is no span"):
        captured_case("gpt").span(2, 2)


def test_fingerprint_does_not_depend_on_the_process() -> None:
    script = (
        "from tests.unit.ravnest.splitting.models import CASES, captured\n"
        "print(captured(CASES['masked']).costs.fingerprint)\n"
    )
    other_seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    printed = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONHASHSEED": other_seed, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    ).stdout.strip()
    assert printed == captured_case("masked").costs.fingerprint


def test_fingerprint_tells_models_apart() -> None:
    marks = {captured_case(name).costs.fingerprint for name in CASES}
    marks.add(captured(Case(lambda: GPT(blocks=1, width=20), CASES["gpt"].args)).costs.fingerprint)
    assert len(marks) == len(CASES) + 1


def test_a_mistake_of_ours_is_not_told_as_the_models(monkeypatch: pytest.MonkeyPatch) -> None:
    def mistaken(*_: object) -> None:
        raise KeyError("ours")

    monkeypatch.setattr("ravnest.splitting.capturing.measure", mistaken)
    with pytest.raises(KeyError, match="ours"):
        captured(CASES["pooled"])
