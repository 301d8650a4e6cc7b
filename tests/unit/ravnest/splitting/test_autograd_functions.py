"""A function of the user's is one operation of the graph, with its own backward, and each stage applies it itself."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import Function

from ravnest.errors import ModelNotSplittable
from ravnest.splitting import capture, verify
from ravnest.splitting.autograd_functions import resolve_function
from ravnest.splitting.plain_programs import as_plain, program_from
from ravnest.splitting.unrolling import LEAST_BLOCKS, unrolled
from tests.unit.ravnest.splitting.models import Case, captured, seeded
from tests.unit.ravnest.splitting.test_thinning import Deep

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


class Reversed(Function):
    """The identity, whose gradients are turned around and scaled."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, by: float) -> Tensor:
        ctx.by = by
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return -ctx.by * gradient, None


class Noisy(Function):
    """A product with noise of its own, and indices that need no gradient; its backward is not torch's."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, rows: int, shape: Any, nothing: None) -> Any:
        ctx.save_for_backward(x, weight)
        noise = torch.rand(shape)
        index = noise.argmax()
        ctx.mark_non_differentiable(index)
        return Reversed.apply(x @ weight + noise, 2.0) / rows, index.expand(rows)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Any) -> Any:
        x, weight = ctx.saved_tensors
        return gradient @ weight.T, 7.0 * x.T @ gradient, None, None, None


reversed_by = Reversed.apply  # as users name it, before ravnest is there


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.weight = nn.Linear(4, 4), nn.Linear(4, 4), nn.Parameter(torch.ones(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        made, index = Noisy.apply(reversed_by(self.a(x), 0.5), self.weight, x.shape[0], (4,), None)
        return self.b(made) + index[:, None]


def test_stages_give_the_functions_own_gradients_and_draw_what_it_draws() -> None:
    case = Case(Model, (X,))
    model = captured(case)
    assert len(model.units) == 3
    found = verify(model, seeded(case), case.args)  # in both modes, as one stage, and as one stage for each unit
    assert found.largest_difference == 0.0
    assert found.short_batches
    assert any(model.span(unit, unit + 1).imports == (__name__,) for unit in range(3))
    program = model.span(0, 3)
    assert [op.target for op in program.train.operations if ":" in op.target and "Noisy" in op.target] == [
        f"{__name__}:Noisy.apply"
    ]
    assert repr(program_from(as_plain(program))) == repr(program)


def test_equal_blocks_whose_backwards_differ_are_not_equal() -> None:
    def deep(last: float) -> nn.Module:
        with torch.device("meta"):
            return Deep(lambda i, block, x, _: reversed_by(block(x), last if i == 7 else 1.0), count=LEAST_BLOCKS)

    sample = (torch.ones(3, 3),)
    assert next(unrolled(deep(1.0), sample, {}), None) is not None
    assert next(unrolled(deep(2.0), sample, {}), None) is None


class Doubled(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.mul_(2.0)


class Counted(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Any:
        return x * 2.0, 7


def local() -> Any:
    class Hidden(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2.0

    return Hidden


@pytest.mark.parametrize(
    ("apply", "said"),
    [
        (lambda x: Doubled.apply(x + 1.0), r"\.Doubled, .* changes an argument in place"),
        (lambda x: Counted.apply(x)[0], r"\.Counted, .* returns int"),
        (lambda x: local().apply(x), r"Hidden, .* has no name in its module .* head of its file"),
        (lambda x: Reversed.apply(x, object()), r"\.Reversed, .* is applied to a object"),
        (lambda x: Reversed.apply(x, by=2.0), r"\.Reversed, .* with keywords"),
    ],
)
def test_what_no_stage_could_do_is_refused_by_the_functions_name(apply: Any, said: str) -> None:
    model = type("Applying", (Model,), {"forward": lambda self, x: self.b(apply(self.a(x)))})()
    with pytest.raises(ModelNotSplittable, match=said):
        capture(model, (X,))


def test_a_program_can_name_functions_only() -> None:
    for target in (f"{__name__}:Model.apply", f"{__name__}:Missing.apply", "not_imported_yet:Reversed.apply"):
        with pytest.raises(ModelNotSplittable, match=r"no torch\.autograd\.Function"):
            resolve_function(target)
