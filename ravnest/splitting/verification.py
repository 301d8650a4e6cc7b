"""Checks, at plan time and with real weights, that stages compute what the eager model computes.

In: a captured model, the model itself and a sample. Out: the largest difference, or a refusal. In both modes, with
equal random numbers, it compares the model, the whole program as one stage, and the program as one stage for each unit.
Outputs, gradients and changed buffers must agree. This catches mistakes that no rule of the capture foresaw. Large
gradients are compared by sums over pieces (gradients.py), so that none is kept.

A model of 16-bit types is compared twice: as it is, with room for the roundings of its type, and then with float32 in
the place of these types (widening.py), as strictly as a float32 model. The first shows that its stages run in these
types, and the second that no operation is missing or wrong.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count, pairwise

import torch
from torch import Tensor, nn

from ravnest.errors import InvalidInput, ModelNotSplittable
from ravnest.factories import user_code
from ravnest.splitting.capturing import CapturedModel
from ravnest.splitting.exporting import batch_size
from ravnest.splitting.gradients import Noted, noting_gradients
from ravnest.splitting.model_source import twin_of, values_of
from ravnest.splitting.output_structure import leaves_by_path
from ravnest.splitting.stage_module import StageModule
from ravnest.splitting.widening import (
    computing_widely,
    is_narrow_anywhere,
    narrow_constants,
    wide,
    widened,
    widened_model,
)

_TOLERANCE = 1e-4
"""The largest difference allowed, relative to the largest magnitude in a tensor. Stages repeat the model's own
operations, so a difference is zero, or rounding where a kernel takes another path: for another memory layout, or since
the model itself takes another path while it is captured (transformers' attention without a mask)."""
_ROUNDINGS = 4
"""Of a result of a 16-bit type, so many eps of that type are allowed, where that is more: another path rounds anew."""
Compared = Tensor | Noted
PIECE = 1 << 20  # numbers that are compared at a time


@dataclass(frozen=True)
class Verification:
    """What the check found for a model that was not refused."""

    largest_difference: float
    """The largest over all outputs, gradients and buffers in both modes, relative to each one's largest magnitude."""
    short_batches: bool
    """Whether stages give what the model gives for a batch of one sample, so that a short last batch may be used."""
    not_widened: str = ""
    """Where a model of 16-bit types was not compared in float32, too: why."""


def verify(
    captured: CapturedModel,
    model: nn.Module,
    args: tuple[Tensor, ...],
    kwargs: Mapping[str, Tensor] | None = None,
    *,
    seed: int = 0,
    whole: bool = True,
    hold: Callable[[str, Tensor], Tensor] = lambda name, tensor: tensor,
    part: Callable[[float], None] = lambda done: None,
) -> Verification:
    """Compare on a sample with real values. The model, on the CPU with weights, is not changed.

    whole: whether the program as one stage is compared, too. hold: where the float32 form of a 16-bit weight is kept.
    part: is told how much of it is done, from 0 to 1.
    Raises ModelNotSplittable naming the mode, the tensor and the largest difference.
    """
    kwargs = dict(kwargs or {})
    captured = replace(captured, loss_parameters=(), loss_buffers=())  # the model alone is compared
    program = captured.span(0, len(captured.units))
    passes = (4 if whole else 2) + 2 * is_narrow_anywhere(program)
    done = count(1)

    def passed() -> None:
        part(next(done) / passes)

    largest = _largest(captured, model, args, kwargs, seed, whole=whole, passed=passed)
    short = captured.batch_is_dynamic and _short_batch(captured, model, args, kwargs, seed)
    not_widened = ""
    if is_narrow_anywhere(program):
        if constants := narrow_constants(program):
            not_widened = f"its forward makes a constant of a 16-bit type, {constants[0]!r}"
        else:
            not_widened = _compare_widely(captured, model, args, kwargs, seed, hold, passed)
    return Verification(largest, short, not_widened)


def _largest(
    captured: CapturedModel,
    model: nn.Module,
    args: tuple[Tensor, ...],
    kwargs: Mapping[str, Tensor],
    seed: int,
    *,
    whole: bool,
    passed: Callable[[], None],
) -> float:
    """The largest difference of the stages from the model, in both modes. Raises ModelNotSplittable."""
    largest = 0.0
    for training in (True, False):
        mode = "training" if training else "evaluation"
        expected = _eager(captured, model, args, kwargs, training, seed)
        ways: list[tuple[str, Sequence[int]]] = [("cut", range(len(captured.units) + 1))]
        for title, cuts in [("as one stage", [0, len(captured.units)]), *ways] if whole else ways:
            found = _staged(captured, model, args, kwargs, list(cuts), training, seed)
            largest = max(largest, _compare(f"{mode}, {title}", expected, found))
            passed()
            del found  # before the next gradients
        del expected
    return largest


def _compare_widely(
    captured: CapturedModel,
    model: nn.Module,
    args: tuple[Tensor, ...],
    kwargs: Mapping[str, Tensor],
    seed: int,
    hold: Callable[[str, Tensor], Tensor],
    passed: Callable[[], None],
) -> str:
    """Compare with float32 in the place of shorter types. Raises ModelNotSplittable.

    Returns why that is not possible where the model's code does not run so.
    """
    model = widened_model(model, hold)
    args, kwargs = tuple(map(wide, args)), {name: wide(tensor) for name, tensor in kwargs.items()}
    cuts = range(len(captured.units) + 1)
    for training in (True, False):
        mode = "training" if training else "evaluation"
        try:
            with computing_widely():
                expected = _eager(captured, model, args, kwargs, training, seed)
        except (InvalidInput, RuntimeError) as error:
            return f"it does not run in float32: {error}"
        found = _staged(captured, model, args, kwargs, list(cuts), training, seed, widely=True)
        _compare(f"{mode}, cut and in float32", expected, found)
        passed()
        del expected, found
    return ""


def _eager(
    captured: CapturedModel,
    model: nn.Module,
    args: tuple[Tensor, ...],
    kwargs: Mapping[str, Tensor],
    training: bool,
    seed: int,
) -> dict[str, Compared]:
    twin = twin_of(model).train(training)
    twin.zero_grad(set_to_none=True)
    mode = "training" if training else "evaluation"
    with torch.random.fork_rng(devices=[]), user_code(f"the forward of {type(model).__name__} in {mode}", key="model"):
        torch.manual_seed(seed)
        structure = twin(*_copies(args), **{name: tensor.clone() for name, tensor in kwargs.items()})
    leaves = leaves_by_path(structure)
    outputs = [leaves[name] for name in captured.output_names]
    outputs = [torch.tensor(leaf) if isinstance(leaf, int) else leaf for leaf in outputs]
    gradients: dict[str, Compared] = {}
    if training:
        with user_code(f"the backward of {type(model).__name__}", key="model"), noting_gradients([twin]) as gradients:
            _backward(outputs, [_direction(output, n) for n, output in enumerate(outputs)])
    return _results(outputs, gradients, [twin])


def _staged(
    captured: CapturedModel,
    model: nn.Module,
    args: tuple[Tensor, ...],
    kwargs: Mapping[str, Tensor],
    cuts: Sequence[int],
    training: bool,
    seed: int,
    *,
    widely: bool = False,
) -> dict[str, Compared]:
    weights = values_of(model)  # stages share the parameters, which no forward changes
    spans = [captured.span(start, end) for start, end in pairwise(cuts)]
    if widely:
        spans = [widened(span) for span in spans]
    stages = [StageModule(span, weights, copy=False).train(training) for span in spans]
    names = [spec.name for spec in stages[0].program.inputs]
    values = _copies((*args, *(kwargs[name] for name in names[len(args) :])))
    with torch.random.fork_rng(devices=[]), noting_gradients(stages) as gradients:
        torch.manual_seed(seed)
        outputs = run_chain(stages, values, training=training)
    return _results(outputs, gradients, stages)


def run_chain(stages: Sequence[StageModule], inputs: tuple[Tensor, ...], *, training: bool) -> list[Tensor]:
    """Run a forward through stages that share nothing, and in training a backward from fixed gradients of the outputs.

    Returns the outputs of the last stage.
    """
    passed: list[tuple[StageModule, list[Tensor], tuple[Tensor, ...]]] = []
    values = inputs
    for stage in stages:
        leaves = [
            value.detach().requires_grad_(training and spec.needs_gradient)
            for value, spec in zip(values, stage.program.inputs, strict=True)
        ]
        outputs = stage(*leaves)
        passed.append((stage, leaves, outputs))
        values = outputs
    if training:
        gradients = [_direction(output, n) for n, output in enumerate(values)]
        for stage, leaves, outputs in reversed(passed):
            needed = stage.output_needs_gradient
            _backward(
                [output for output, need in zip(outputs, needed, strict=True) if need],
                [gradient for gradient, need in zip(gradients, needed, strict=True) if need],
            )
            gradients = [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in leaves]
    return [value.detach() for value in values]


def _backward(outputs: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
    pairs = [(o, g) for o, g in zip(outputs, gradients, strict=True) if o.requires_grad]
    if pairs:
        torch.autograd.backward([o for o, _ in pairs], [g for _, g in pairs])


def _direction(output: Tensor, number: int) -> Tensor:
    generator = torch.Generator().manual_seed(number)
    return torch.randn(output.shape, generator=generator).to(output.dtype)


def _results(
    outputs: Sequence[Tensor], gradients: Mapping[str, Compared], modules: Sequence[nn.Module]
) -> dict[str, Compared]:
    results: dict[str, Compared] = {f"output {number}": output.detach() for number, output in enumerate(outputs)}
    for module in modules:
        named = [name for name, _ in module.named_parameters() if name in gradients]
        results |= {f"gradient of {name}": gradients[name] for name in named}
        results |= {f"buffer {name}": buffer for name, buffer in module.named_buffers()}
    return results


def _compare(title: str, expected: Mapping[str, Compared], found: Mapping[str, Compared]) -> float:
    largest = 0.0
    for name, right in expected.items():
        if name.startswith("buffer ") and name not in found:
            continue  # the graph never reads it
        if name not in found or found[name].shape != right.shape or found[name].dtype != right.dtype:
            raise ModelNotSplittable(f"in {title}, {name} is missing or of another shape than in the model")
        difference = _difference(found[name], right)
        if not difference <= _allowed(right.dtype):
            raise ModelNotSplittable(
                f"in {title}, {name} differs from the model by {difference:.2e} of its largest magnitude"
            )
        largest = max(largest, difference)
    extra = [name for name in found.keys() - expected.keys() if name.startswith("gradient")]
    for name in sorted(extra):
        given = found[name]
        if bool(given.any()) if isinstance(given, Tensor) else given.largest > 0.0:
            raise ModelNotSplittable(f"in {title}, there is a {name} that the model does not have")
    return largest


def _allowed(dtype: torch.dtype) -> float:
    return max(_TOLERANCE, _ROUNDINGS * torch.finfo(dtype).eps) if dtype.is_floating_point else _TOLERANCE


def _difference(found: Compared, right: Compared) -> float:
    if isinstance(found, Noted) or isinstance(right, Noted):
        assert isinstance(found, Noted)  # since they have equal shapes
        assert isinstance(right, Noted)
        return found.difference(right)
    if torch.equal(found, right):
        return 0.0
    gap = scale = 0.0
    pieces = (torch.split(tensor.reshape(-1), PIECE) for tensor in (found, right))
    for mine, other in zip(*pieces, strict=True):  # float64 copies of a whole embedding would take gigabytes
        a, b = (tensor.to(torch.complex128 if tensor.is_complex() else torch.float64) for tensor in (mine, other))
        same = (a == b) | (a.isnan() & b.isnan())
        apart = float(torch.where(same, torch.zeros_like(a), a - b).abs().max())
        if apart != apart:
            return float("inf")
        gap = max(gap, apart)
        scale = max(scale, float(torch.where(b.isfinite(), b, torch.zeros_like(b)).abs().max()))
    ratio = gap / max(scale, 1e-30)
    return ratio if ratio == ratio else float("inf")


def _short_batch(
    captured: CapturedModel,
    model: nn.Module,
    args: tuple[Tensor, ...],
    kwargs: Mapping[str, Tensor],
    seed: int,
) -> bool:
    samples = batch_size((*args, *kwargs.values()))
    if samples == 1:  # which was just compared
        return True

    def one(tensor: Tensor) -> Tensor:
        return tensor[:1] if tensor.ndim and tensor.shape[0] == samples else tensor

    short = tuple(one(tensor) for tensor in args)
    keywords = {name: one(tensor) for name, tensor in kwargs.items()}
    cuts = range(len(captured.units) + 1)
    try:
        expected = _eager(captured, model, short, keywords, False, seed)
        found = _staged(captured, model, short, keywords, list(cuts), False, seed)
        _compare("evaluation of one sample", expected, found)
    except (RuntimeError, ValueError, InvalidInput):
        return False
    return True


def _copies(tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    return tuple(tensor.clone() for tensor in tensors)
