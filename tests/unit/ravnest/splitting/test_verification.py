"""The check at plan time."""

import dataclasses
import re
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from ravnest.errors import ModelNotSplittable
from ravnest.splitting import CapturedModel, Verification, capture, verification, verify
from ravnest.splitting.gradients import noting_gradients
from ravnest.splitting.liveness import GraphLayout
from ravnest.splitting.program import Grad, ModelGraph, Operation
from tests.unit.ravnest.splitting.models import CASES, FixedBatch, captured_case, seeded


@pytest.mark.parametrize("name", CASES)
def test_accepts_what_is_captured_rightly(name: str) -> None:
    case = CASES[name]
    model = seeded(case)
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    told: list[float] = []
    found = verify(captured_case(name), model, case.args, case.kwargs, part=told.append)
    assert found.largest_difference == 0.0
    assert (told[-1], sorted(told)) == (1.0, told)
    assert found.short_batches == (case.make is not FixedBatch)
    assert all(torch.equal(before[key], tensor) for key, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def changed(layout: GraphLayout, operator: str, **kwargs: object) -> GraphLayout:
    """With every call of an operator altered, as a wrong capture would have it."""

    def other(operation: Operation) -> Operation:
        if operation.target != operator:
            return operation
        return dataclasses.replace(operation, **kwargs)  # type: ignore[arg-type]

    graph = layout.converted.graph
    converted = dataclasses.replace(
        layout.converted, graph=ModelGraph(tuple(map(other, graph.operations)), graph.outputs)
    )
    return dataclasses.replace(layout, converted=converted)


def small() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.BatchNorm1d(4), nn.Linear(4, 4))


@pytest.mark.parametrize(("mode", "word"), [("train", "training"), ("evaluate", "evaluation")])
def test_refuses_a_mode_that_differs_and_names_it(mode: str, word: str) -> None:
    sample = (torch.randn(3, 4, generator=torch.Generator().manual_seed(0)),)
    model = small()
    right = capture(model, sample)
    wrong = dataclasses.replace(
        right, **{mode: changed(getattr(right, mode), "aten.tanh.default", target="aten.sigmoid.default")}
    )
    with pytest.raises(ModelNotSplittable, match=rf"in {word}, as one stage, output 0 differs .* by \d"):
        verify(wrong, model, sample)
    verify(right, model, sample)


def test_what_differs_is_the_same_compared_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    sample = (torch.randn(3, 4, generator=torch.Generator().manual_seed(0)),)
    model = small()
    right = capture(model, sample)
    wrong = dataclasses.replace(right, train=changed(right.train, "aten.tanh.default", target="aten.sigmoid.default"))
    said = []
    for piece in (1 << 20, 1, 5):
        monkeypatch.setattr(verification, "PIECE", piece)
        with pytest.raises(ModelNotSplittable) as refused:
            verify(wrong, model, sample)
        said.append(str(refused.value))
    assert len(set(said)) == 1


def test_large_gradients_are_compared_without_being_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    sample = (torch.randn(3, 4, generator=torch.Generator().manual_seed(0)),)
    model = small()
    right = capture(model, sample)
    cut_off = changed(right.train, "aten.tanh.default", contexts=(Grad(False),))
    monkeypatch.setattr(verification, "noting_gradients", partial(noting_gradients, large=1))
    assert verify(right, model, sample, whole=False).largest_difference < 1e-6
    with pytest.raises(ModelNotSplittable, match=r"in training, cut, gradient of 0.weight"):
        verify(dataclasses.replace(right, train=cut_off), model, sample, whole=False)


def test_refuses_a_buffer_that_ends_up_different() -> None:
    sample = (torch.randn(3, 4, generator=torch.Generator().manual_seed(0)),)
    model = small()
    right = capture(model, sample)
    (norm,) = [op for op in right.train.operations if op.target == "aten.batch_norm.default"]
    wrong: CapturedModel = dataclasses.replace(
        right,
        train=changed(right.train, norm.target, args=(*norm.args[:6], 0.5, *norm.args[7:])),
    )
    with pytest.raises(ModelNotSplittable, match=r"in training, as one stage, buffer 2.running_mean differs"):
        verify(wrong, model, sample)


def test_tells_where_one_sample_is_treated_otherwise() -> None:
    class Lonely(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.first(x) * (2.0 if x.shape[0] == 1 else 1.0)

    sample = (torch.ones(3, 4),)
    model = Lonely()
    assert not verify(capture(model, sample), model, sample).short_batches


class Narrow(nn.Module):
    """Of bfloat16 throughout, with a part that changes its result by less than bfloat16 rounds."""

    def __init__(self, own: Callable[[Tensor], Tensor] = lambda y: y) -> None:
        super().__init__()
        self.first, self.last, self.own = nn.Linear(4, 4), nn.Linear(4, 4), own
        self.register_buffer("scale", torch.ones(4))
        self.to(torch.bfloat16)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x) * self.scale
        return self.last(self.own(y + torch.sin(y * 0.004)))


SHORT = torch.linspace(-1, 1, 12).view(3, 4).bfloat16()


def test_a_dropped_operator_is_found_below_the_roundings_of_bfloat16() -> None:
    model = Narrow()
    right = capture(model, (SHORT,))
    assert verify(right, model, (SHORT,)) == Verification(0.0, True)
    for mode, word in (("train", "training"), ("evaluate", "evaluation")):
        layout = getattr(right, mode)
        (sine,) = [operation for operation in layout.operations if operation.target == "aten.sin.default"]
        wrong = dataclasses.replace(right, **{mode: changed(layout, sine.target, target="aten.zeros_like.default")})
        with pytest.raises(ModelNotSplittable, match=rf"in {word}, cut and in float32, output 0 differs"):
            verify(wrong, model, (SHORT,))


def autocast(y: Tensor) -> Tensor:
    with torch.autocast(y.device.type, torch.bfloat16):
        return torch.matmul(y, torch.ones(4, 4, dtype=y.dtype, device=y.device))


@pytest.mark.parametrize("own", [lambda y: y.float().softmax(-1).to(torch.bfloat16), autocast])
def test_code_that_names_its_types_is_compared_in_float32(own: Callable[[Tensor], Tensor]) -> None:
    model = Narrow(own)
    assert verify(capture(model, (SHORT,)), model, (SHORT,)).not_widened == ""


def only_short(y: Tensor) -> Tensor:
    if y.dtype != torch.bfloat16:
        raise TypeError("bfloat16 only")
    return y


@pytest.mark.parametrize(
    ("own", "why"),
    [
        (lambda y: y * torch.tensor([0.1], dtype=y.dtype), "makes a constant of a 16-bit type"),
        (only_short, "does not run in float32: .*bfloat16 only"),
    ],
)
def test_says_why_a_model_was_not_compared_in_float32(own: Callable[[Tensor], Tensor], why: str) -> None:
    model = Narrow(own)
    assert re.search(why, verify(capture(model, (SHORT,)), model, (SHORT,)).not_widened)
