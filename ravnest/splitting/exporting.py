"""Exports a model with torch.export in both modes, and tries other ways when the first fails.

In: a model and a sample batch. Out: the ways to export it, best first, and the exported graphs of one of them. The
order is: dynamic batch on the model as it is, dynamic batch on an unfilled CPU copy (for models that cannot run on the
meta device), then both again with the batch size of the sample fixed. Both modes are always exported the same way. The
copy takes no memory until something writes to it, and nothing does.
"""

import copy
import inspect
import io
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from ravnest.errors import InvalidInput, ModelNotSplittable
from ravnest.factories import place
from ravnest.splitting.autograd_functions import as_operators
from ravnest.splitting.model_source import computed

_CHATTY = ("torch.fx.experimental.symbolic_shapes", "torch._subclasses.fake_tensor")


@dataclass(frozen=True)
class ExportedModes:
    """Both modes of a model, exported on the same inputs."""

    train: ExportedProgram
    evaluate: ExportedProgram
    input_names: tuple[str, ...]
    inputs: tuple[Tensor, ...]
    """The sample, with values only where the caller gave them: positional arguments, then keyword arguments."""
    batch_is_dynamic: bool


class UnfitError(Exception):
    """This way of exporting gave a graph that cannot be used; another way may give one."""


def batch_size(inputs: tuple[Tensor, ...]) -> int:
    """The number of samples in a batch: the first dimension of the first input that has one.

    Raises InvalidInput when no input has a dimension.
    """
    for tensor in inputs:
        if tensor.ndim:
            return tensor.shape[0]
    raise InvalidInput("the model needs at least one input with a batch dimension")


def ways_to_export(model: nn.Module, args: tuple[Tensor, ...], kwargs: Mapping[str, Tensor]) -> Iterator["Way"]:
    """The ways to export, best first. Raises InvalidInput for an input that is no tensor."""
    for argument in (*args, *kwargs.values()):
        if not isinstance(argument, Tensor):
            raise InvalidInput(f"model inputs must be tensors, not {type(argument).__name__}")
    for dynamic in (True, False):
        yield Way(model, args, dict(kwargs), dynamic, twin=False)
        if _device_of(model, args).type == "meta":
            yield Way(model, args, dict(kwargs), dynamic, twin=True)


@dataclass(frozen=True)
class Way:
    """One way to export: the model or its CPU twin, and whether the batch dimension may vary."""

    model: nn.Module
    args: tuple[Tensor, ...]
    kwargs: dict[str, Tensor]
    dynamic: bool
    twin: bool

    def export(self) -> ExportedModes:
        """Export both modes in this way. Raises UnfitError, or whatever torch.export raises."""
        model = twin_on_cpu(self.model) if self.twin else self.model
        device = _device_of(model, self.args)
        samples = batch_size((*self.args, *self.kwargs.values()))
        # torch.export takes a size of 1 for a constant, so a dynamic batch is shown with two samples at least.
        repeat = 2 if self.dynamic and samples == 1 else 1

        def prepared(tensor: Tensor) -> Tensor:
            if repeat > 1 and tensor.ndim and tensor.shape[0] == samples:
                tensor = torch.cat([tensor] * repeat)
            return tensor.to(device) if device.type == "meta" else torch.zeros_like(tensor, device=device)

        args = tuple(prepared(tensor) for tensor in self.args)
        kwargs = {name: prepared(tensor) for name, tensor in self.kwargs.items()}
        shapes = _dynamic_shapes(model, args, kwargs, samples * repeat) if self.dynamic else None
        programs = {}
        training = {module: module.training for module in model.modules()}
        try:
            for mode in (True, False):
                model.train(mode)
                with quiet(), as_operators():
                    programs[mode] = torch.export.export(model, args, kwargs, dynamic_shapes=shapes)
        finally:
            for module, was in training.items():
                module.training = was
        names = _input_names(programs[True])
        ordered = (*args, *(kwargs[name] for name in names[len(args) :]))
        return ExportedModes(programs[True], programs[False], names, ordered, self.dynamic)


def _input_names(program: ExportedProgram) -> tuple[str, ...]:
    """The names of the inputs in the graph's order: those in the graph of positional ones, keywords of the others."""
    names = list(program.graph_signature.user_inputs)
    spec = program.call_spec.in_spec
    assert spec is not None
    positional, keywords = spec.children()
    keys = list(keywords.context or ())
    names[positional.num_leaves :] = keys
    return tuple(str(name) for name in names)


def refusal(model: nn.Module, error: Exception) -> ModelNotSplittable:
    """The error, in one line, that no way of exporting worked. `error`: that of the last way."""
    reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    where = place(error)
    hint = ""
    if any(sign in str(error) for sign in _READS_VALUES):
        hint = f"; {_counting_norm(model) or _VALUES_ARE_READ}"
    elif _WRITES_DATA in str(error):
        reason, where, hint = "its forward writes to the .data of a tensor", "", f"; {_NEW_TENSORS}"
    if any(sign in str(error) for sign in _CACHES):
        hint = f"; {_A_CACHE_IS_RETURNED}"
    return ModelNotSplittable(
        f"{type(model).__name__} cannot be captured: {reason}{f' ({where})' if where else ''}{hint}"
    )


_WRITES_DATA = "fake tensor in the exported program constant"
_NEW_TENSORS = (
    "let it compute a new tensor from the weight, as torch.nn.utils.parametrize does, or keep what it changes in a"
    " buffer and change that in place"
)
_CACHES = ("DynamicCache", "transformers.cache_utils")
_A_CACHE_IS_RETURNED = (
    "the model of transformers returns its cache of keys and values, which training has no use for: set"
    " config.use_cache = False before the factory returns it, or name the model under model.huggingface, without a"
    " factory"
)
_READS_VALUES = ("data-dependent", "_local_scalar_dense")
_VALUES_ARE_READ = (
    "its forward reads the value of a tensor (an `if` on it, .item(), float()), so its control flow or shapes"
    " depend on the values of tensors: use torch.where, or a mask"
)


def _counting_norm(model: nn.Module) -> str | None:
    """What to do about a batch norm without momentum, which reads its counter as a number; None without one."""
    for name, module in model.named_modules():
        norm = isinstance(module, torch.nn.modules.batchnorm._NormBase)
        if norm and module.momentum is None and module.track_running_stats:
            kind = type(module).__name__
            return f"{name!r} is a {kind} with momentum=None, which reads its counter: give it a momentum, such as 0.1"
    return None


def _dynamic_shapes(
    model: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Tensor], samples: int
) -> dict[str, object]:
    def shape(argument: object) -> object:
        if isinstance(argument, tuple):
            return tuple(shape(element) for element in argument)
        if isinstance(argument, dict):
            return {key: shape(element) for key, element in argument.items()}
        if isinstance(argument, Tensor) and argument.ndim and argument.shape[0] == samples:
            return {0: torch.export.Dim.DYNAMIC}
        return None

    try:
        bound = inspect.signature(model.forward).bind(*args, **kwargs)
    except TypeError as error:
        raise InvalidInput(f"{type(model).__name__}.forward does not take the inputs of the sample: {error}") from None
    return {name: shape(argument) for name, argument in bound.arguments.items()}


def _device_of(model: nn.Module, args: tuple[Tensor, ...]) -> torch.device:
    for tensor in (*model.parameters(), *model.buffers(), *args):
        return tensor.device
    return torch.device("cpu")


def twin_on_cpu(model: nn.Module) -> nn.Module:
    """A copy on the CPU of a model on the meta device. Its memory is not filled."""
    twin = copy.deepcopy(model, computed(model)).to_empty(device="cpu")
    for module in twin.modules():
        for name, value in vars(module).items():
            if isinstance(value, Tensor) and value.device.type == "meta":
                setattr(module, name, torch.empty_like(value, device="cpu"))
    return twin


@contextmanager
def quiet() -> Iterator[None]:
    """Hide torch's warnings about what is checked here (attributes of LSTM), and the graphs and traces that it prints.

    The error says in one line what failed.
    """
    loggers = [logging.getLogger(name) for name in _CHATTY]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
            warnings.filterwarnings("ignore", category=UserWarning)
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
