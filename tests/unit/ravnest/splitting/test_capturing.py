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
from ravnest.splitting import capture, initial_weights
from ravnest.splitting.conversion import Converted
from ravnest.splitting.liveness import SENDABLE
from ravnest.splitting.stage_module import StageModule
from ring_allreduce.transport.envelope import DTYPES
from tests.unit.ravnest.splitting.models import (
    CASES,
    GPT,
    Case,
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


def test_a_capture_with_values_has_the_same_units_at_the_same_costs(name: str) -> None:
    """On the meta device some results lie in memory otherwise, so that a `contiguous` stays, which costs nothing."""
    without, case = captured_case(name), CASES[name]
    with_values = capture(seeded(case), case.args, case.kwargs)
    assert with_values.units == without.units
    for one, other in zip(with_values.modes, without.modes, strict=True):
        assert _without_layouts(one) == _without_layouts(other)


def _without_layouts(converted: Converted) -> list[str]:
    return [operation.target for operation in converted.graph.operations if "contiguous" not in operation.target]


def test_each_transformer_block_offers_two_cuts_at_its_residual_joints() -> None:
    case = Case(lambda: GPT(blocks=3), CASES["gpt"].args)
    model = captured(case)
    width_bytes = 8 * 16 * 4
    joints = [u for u in model.units if u.name.startswith("blocks") and u.boundary_bytes == width_bytes]
    assert len(joints) >= 6


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


def test_frozen_layers_need_no_gradient_before_them() -> None:
    def make() -> nn.Module:
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
        model[0].requires_grad_(False)
        return model

    model = captured(Case(make, (torch.ones(3, 4),)))
    assert [model.span(0, cut).outputs[0].needs_gradient for cut in (1, 2)] == [False, True]
    assert [unit.boundary_gradient_bytes for unit in model.units] == [0, 16, 0]


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


class Waves(nn.Module):
    """Complex numbers are alive between its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(4, 4) for _ in range(3))
        self.turn = nn.Parameter(torch.ones(4, 2))

    def forward(self, x: Tensor) -> Tensor:
        z = torch.fft.fft(self.a(x)).transpose(0, 1).conj()
        z = z * self.b.weight[0][:, None] * torch.view_as_complex(self.turn)[:, None]
        return self.c(torch.fft.ifft(z, dim=0).real.transpose(0, 1))


def test_complex_values_travel_as_their_parts() -> None:
    case = Case(Waves, (torch.randn(3, 4),))
    model = captured(case)
    count = len(model.units)
    stages = build(model, case, list(range(count + 1)))
    specs = [spec for stage in stages[:-1] for spec in stage.program.outputs]
    assert any(spec.is_complex and spec.dtype == torch.float32 and spec.shape[-1] == 2 for spec in specs)
    assert all(spec.dtype in SENDABLE for spec in specs)
    for training in (True, False):
        whole = run_stages(build(model, case, [0, count]), case.args, training)
        run_stages(stages, case.args, training).assert_equal(whole, gradient_tolerance=1e-6)


def test_what_may_be_sent_is_what_the_transport_carries() -> None:
    assert set(DTYPES.values()) == SENDABLE


class Sparse(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(10, 4, sparse=True)
        self.head = nn.Linear(4, 4)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.words(ids))


def test_sparse_gradients_are_refused_by_the_modules_name() -> None:
    with pytest.raises(ModelNotSplittable, match=r"^words makes sparse gradients .*leave out `sparse=True`"):
        captured(Case(Sparse, (torch.zeros(3, 2, dtype=torch.long),)))


class Extra(nn.Module):
    """Saves something of its own beside its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.state = 3.0

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.a(x))

    def get_extra_state(self) -> object:
        return torch.tensor([self.state, 0.1], dtype=torch.float64, device="cpu")

    def set_extra_state(self, state: Tensor) -> None:
        self.state = float(state[0])


def test_extra_state_of_a_module_is_saved_with_its_weights() -> None:
    case = Case(Extra, (torch.ones(3, 4),))
    model = captured(case)
    stages = build(model, case, [0, 1, 2])
    saved = {key: tensor for stage in stages for key, tensor in stage.state_dict().items()}
    assert torch.equal(saved["_extra_state"], torch.tensor([3.0, 0.1], dtype=torch.float64))
    fresh = Extra()
    fresh.state = 0.0
    fresh.load_state_dict(saved)
    assert fresh.state == 3.0


def test_extra_state_that_files_of_weights_cannot_hold_is_refused() -> None:
    Model = type("Model", (Extra,), {"get_extra_state": lambda self: {"steps": 3}})
    with pytest.raises(InvalidInput, match=r"get_extra_state of 'Model' returns dict, .* return a tensor"):
        captured(Case(Model, (torch.ones(3, 4),)))
