"""What stages cannot run is refused in one line; the rest becomes plain operations."""

import pytest
import torch
from torch import Tensor, nn

from ravnest.errors import ModelNotSplittable
from tests.unit.ravnest.splitting.models import (
    Case,
    Moods,
    captured,
    captured_case,
)


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
