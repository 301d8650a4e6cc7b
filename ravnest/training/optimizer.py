"""The optimizer of a job: torch's class, its arguments, its learning rate, its memory, and the clipping of gradients.

In: the `optimizer` section of a job file. Out: a torch optimizer, made without importing torch's compiler, the factor
that clips an update's gradient, and the learning rate of each update. The rate follows the updates that a cluster has
made itself, so no stage has to ask another, and a resumed run goes on where it stood. A name or argument that torch
would not accept is refused when the job is read, before any machine starts. Which parameters it owns, and when it
steps, is decided in weights.py.
"""

import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from functools import cache
from typing import Any, Literal, Self

import torch
from pydantic import ConfigDict, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError
from torch.optim import Optimizer

from ravnest.errors import InvalidInput, RunFailed
from ravnest.job_sections import Fraction, NonNegativeInt, PositiveFloat, Section
from ravnest.training.corrections import CorrectionName, corrected
from ravnest.training.lamb import LAMB
from ravnest.training.parameter_groups import GroupConfig, group_of
from ravnest.training.soap import SOAP

DEFAULT_FINAL_LR_RATIO = 0.1
"""It is not zero, since a cluster that is faster than planned makes updates after its expected last one."""


class ScheduleConfig(Section):
    """The `optimizer.schedule` section of the job file."""

    name: Literal["constant", "linear", "cosine"] = "constant"
    """The shape of the rate after warm-up: constant, falling linearly, or falling along half a cosine."""

    warmup_updates: NonNegativeInt = 0
    """The number of updates over which the rate first rises in equal steps to `lr`."""

    final_lr_ratio: Fraction | None = None
    """The rate at the cluster's expected last update, as a fraction of `lr` (linear and cosine only; default 0.1)."""

    @model_validator(mode="after")
    def _constant_has_no_end(self) -> Self:
        if self.name == "constant" and self.final_lr_ratio is not None:
            raise ValueError("final_lr_ratio has no meaning for a constant schedule: use linear or cosine")
        return self


def expected_updates(cluster_samples: float, micro_batch: int, update_every: int) -> int:
    """How many whole updates a cluster makes of `cluster_samples` samples; at least one."""
    return max(1, int(cluster_samples // (micro_batch * update_every)))


def lr_ratio(schedule: ScheduleConfig, update: int, total_updates: int | None) -> float:
    """The fraction of the peak rate for update number `update` (from 0) of `total_updates` expected ones.

    Past the expected end the ratio stays at its final value. `total_updates` is None when the run has no known end.
    Raises InvalidInput when a decaying schedule has no end to decay to, or ends inside its warm-up.
    """
    warmup = schedule.warmup_updates
    if schedule.name != "constant":
        if total_updates is None:
            raise InvalidInput(
                f"a {schedule.name} schedule needs a known end: stop by samples or epochs, or use constant",
                key="optimizer.schedule.name",
            )
        if warmup >= total_updates:
            raise InvalidInput(
                f"{warmup} warm-up updates leave none to decay over: a cluster is expected to make {total_updates}",
                key="optimizer.schedule.warmup_updates",
                hint="fewer of them, or a later `stop`",
            )
    if update < warmup:
        return (update + 1) / warmup
    if schedule.name == "constant" or total_updates is None:
        return 1.0
    final = DEFAULT_FINAL_LR_RATIO if schedule.final_lr_ratio is None else schedule.final_lr_ratio
    done = min(1.0, (update - warmup) / (total_updates - warmup))
    falling = 1.0 - done if schedule.name == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))
    return final + (1.0 - final) * falling


def learning_rate(peak_lr: float, schedule: ScheduleConfig, update: int, total_updates: int | None) -> float:
    """The learning rate of update number `update` (from 0). Raises InvalidInput as lr_ratio does."""
    return peak_lr * lr_ratio(schedule, update, total_updates)


_REFUSED = {
    "lbfgs": "it calls the model again inside its step, which a pipeline stage cannot do alone",
    "sparseadam": "it takes sparse gradients only, and stages make dense ones",
}
_CLASSES: dict[str, type[Optimizer]] = {
    name.lower(): member
    for name, member in vars(torch.optim).items()
    if isinstance(member, type) and issubclass(member, Optimizer) and member is not Optimizer
} | {"soap": SOAP, "lamb": LAMB}
# `lr` is a field of its own; the others need a graph through the step, or CUDA graphs.
_NOT_ARGUMENTS = {"self", "params", "lr", "differentiable", "capturable"}
_COMPILER_IS_IMPORTED_BY = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")


class OptimizerConfig(Section):
    """The `optimizer` section of the job file. Any other key is an argument of the torch.optim class."""

    model_config = ConfigDict(extra="allow")

    name: str = "adamw"
    """A class of torch.optim, in any case, soap or lamb."""

    lr: PositiveFloat = 1e-3
    """Peak learning rate, per update."""

    schedule: ScheduleConfig = ScheduleConfig()
    """How the rate follows a cluster's updates."""

    clip_norm: PositiveFloat | None = None
    """Largest global L2 norm of an update's gradient; null does not clip."""

    correction: CorrectionName | None = None
    """What an update does about stale gradients. null: look_ahead for a momentum that it knows, else none."""

    groups: tuple[GroupConfig, ...] = ()
    """Parameters for which something is different; the first group that matches a name counts."""

    @property
    def arguments(self) -> dict[str, object]:
        """The keys that are passed on to the torch.optim class."""
        return dict(self.model_extra or {})

    def of_group(self, group: GroupConfig) -> "OptimizerConfig":
        """The section as it is for one group's parameters. Raises ValidationError where that is not possible."""
        same = group.name is None or group.name.lower() == self.name.lower()
        whole: dict[str, Any] = {
            **(self.arguments if same else {}),
            **group.arguments,
            "name": group.name or self.name,
            "lr": group.lr or self.lr,
            "schedule": self.schedule,
            "clip_norm": self.clip_norm,
            "correction": self.correction,
        }
        return OptimizerConfig.model_validate(whole)

    @model_validator(mode="before")
    @classmethod
    def _check_arguments(cls, data: object) -> object:
        if not isinstance(data, Mapping):
            return data
        unnamed = [key for key in data if not isinstance(key, str)]
        if unnamed:
            raise ValueError(f"keys must be text, not {unnamed[0]!r}")
        try:
            chosen = _class_named(data.get("name", "adamw"))
        except ValueError as error:
            raise _mistakes({"name": (str(error), data.get("name"))}) from None
        known = {key: data[key] for key in data if key in cls.model_fields}
        arguments, mistakes = _read_arguments(chosen, {key: data[key] for key in data if key not in known})
        if mistakes:
            raise _mistakes(mistakes)
        return {**known, **arguments}

    @model_validator(mode="after")
    def _torch_agrees(self) -> Self:
        parameter = torch.nn.Parameter(torch.zeros(2, 2))
        optimizer = _construct(self, [parameter])
        parameter.grad = torch.ones(2, 2)
        with _refusing(_class_named(self.name)):
            optimizer.step()  # Muon looks at some of its arguments only here
        if self.correction is not None:
            corrected(self.correction, optimizer)
        for place, group in enumerate(self.groups):
            try:
                self.of_group(group)
            except ValidationError as error:
                raise _within(error, ("groups", place)) from None
        return self


def partition(config: OptimizerConfig, names: Iterable[str]) -> list[tuple[OptimizerConfig, list[str]]]:
    """The parameters `names` by groups: each with the section as it is for it, without those that are empty. The
    parameters of no group come last."""
    members: dict[int, list[str]] = {}
    for name in names:
        members.setdefault(group_of(config.groups, name), []).append(name)
    rest = config.model_copy(update={"groups": ()})
    every = [*map(config.of_group, config.groups), rest]
    return [(every[place], members[place]) for place in sorted(members)]


def build_optimizer(config: OptimizerConfig, parameters: Iterable[tuple[str, torch.nn.Parameter]]) -> Optimizer:
    """The optimizer over the named parameters (at least one), all of one group, at the peak rate.

    Raises InvalidInput, in torch's own words, for a parameter that the class cannot train (Muon takes matrices only).
    """
    try:
        return _construct(config, [parameter for _, parameter in parameters])
    except ValueError as error:
        raise InvalidInput(str(error), key="optimizer") from None


def uncompiled(chosen: type[Optimizer]) -> type[Optimizer]:
    """A subclass of one of torch's optimizers that does the same without importing torch's compiler.

    Each of torch's optimizers tells torch.compile what not to compile, and imports the compiler for it as soon as it is
    made: 800 modules, 70 MiB and seconds of every stage's start, for steps that nobody compiles. The subclass calls the
    functions below those wrappers, so the arithmetic is torch's own; what torch has not wrapped stays as it is.
    """
    hashable: Any = chosen  # every class is; typeshed says that Optimizer's is not
    made: type[Optimizer] = _made(hashable)
    return made


def norm_to_clip_by(own_norm_sq: float, last_known_norm: float | None) -> float:
    """The norm by which a stage of an asynchronous pipeline clips this update, whose global norm is not known yet.

    The last known global norm belongs to an earlier update. This update's is at least that of the stage's own part,
    which is therefore a lower bound, and is used alone while no global norm is known.
    """
    own = math.sqrt(own_norm_sq)
    return own if last_known_norm is None else max(own, last_known_norm)


def clip_scale(norm: float, clip_norm: float) -> float:
    """The factor in (0, 1] for the gradient, as torch.nn.utils.clip_grad_norm_ computes it.

    Raises RunFailed when the norm is not finite: scaling would turn every weight into NaN.
    """
    if not math.isfinite(norm):
        raise RunFailed(f"the gradient's norm is {norm}: training has diverged (lower optimizer.lr or clip_norm)")
    return min(1.0, clip_norm / (norm + 1e-6))


def _class_named(name: object) -> type[Optimizer]:
    """The torch.optim class of this name in any case; ValueError gives the nearest one."""
    lower = str(name).lower()
    if lower in _REFUSED:
        raise ValueError(f"{_CLASSES[lower].__name__} cannot be used: {_REFUSED[lower]}")
    if lower not in _CLASSES:
        offered = sorted(set(_CLASSES) - set(_REFUSED))
        near = get_close_matches(lower, offered, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(offered)}"
        raise ValueError(f"torch.optim has no optimizer {name!r}; {hint}")
    return _CLASSES[lower]


def _construct(config: OptimizerConfig, parameters: list[torch.nn.Parameter]) -> Optimizer:
    chosen = _class_named(config.name)
    build: Callable[..., Optimizer] = uncompiled(chosen)  # each class has its own arguments
    with _refusing(chosen):
        return build(parameters, lr=config.lr, **config.arguments)


@contextmanager
def _refusing(chosen: type[Optimizer]) -> Iterator[None]:
    """What the class raises within the block becomes a ValueError that names it."""
    try:
        yield
    except (ValueError, RuntimeError, TypeError) as error:
        raise ValueError(f"{_place(chosen)}{chosen.__name__} refuses: {' '.join(str(error).split())}") from None


def _place(chosen: type[Optimizer]) -> str:
    return "torch.optim." if chosen.__module__.startswith("torch.") else ""


def _mistakes(found: Mapping[str, tuple[str, object]]) -> ValidationError:
    details = [
        InitErrorDetails(type=PydanticCustomError("value_error", "{error}", {"error": what}), loc=(key,), input=value)
        for key, (what, value) in found.items()
    ]
    return ValidationError.from_exception_data("OptimizerConfig", details)


def _within(error: ValidationError, place: tuple[int | str, ...]) -> ValidationError:
    """The same mistakes, at keys within `place`."""
    details = [
        InitErrorDetails(
            type=PydanticCustomError("value_error", "{error}", {"error": found["msg"].removeprefix("Value error, ")}),
            loc=(*place, *found["loc"]),
            input=found["input"],
        )
        for found in error.errors(include_url=False)
    ]
    return ValidationError.from_exception_data("OptimizerConfig", details)


def _read_arguments(
    chosen: type[Optimizer], given: Mapping[str, object]
) -> tuple[dict[str, object], dict[str, tuple[str, object]]]:
    """Split what was given into accepted arguments and mistakes, each by key."""
    signature = inspect.signature(chosen.__init__).parameters
    defaults = {key: value.default for key, value in signature.items() if key not in _NOT_ARGUMENTS}
    accepted: dict[str, object] = {}
    mistakes: dict[str, tuple[str, object]] = {}
    for key, value in given.items():
        if key not in defaults:
            near = get_close_matches(key, [*defaults, *OptimizerConfig.model_fields], n=1)
            hint = f"did you mean `{near[0]}`?" if near else f"it takes {', '.join(sorted(defaults))}"
            mistakes[key] = (f"{chosen.__name__} has no such argument; {hint}", value)
            continue
        try:
            accepted[key] = _like(defaults[key], value)
        except ValueError as error:
            mistakes[key] = (str(error), value)
    return accepted, mistakes


def _like(default: object, value: object) -> object:
    """`value` as the kind of thing `default` is; ValueError says what was expected."""
    if isinstance(default, bool):
        if not isinstance(value, bool):
            raise ValueError("expected true or false")
        return value
    if isinstance(default, tuple):
        if not isinstance(value, Sequence) or isinstance(value, str) or len(value) != len(default):
            raise ValueError(f"expected {len(default)} numbers, as in {list(default)}")
        return tuple(None if part is None else _finite(part) for part in value)
    if isinstance(default, int | float):
        return _finite(value)
    if value is not None and not isinstance(value, bool | str):
        raise ValueError("expected true, false, null or a name")
    return value


def _finite(value: object) -> int | float:
    if isinstance(value, str):  # YAML reads 1e-8 as text
        try:
            value = float(value)
        except ValueError:
            raise ValueError(f"expected a number, not {value!r}") from None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"expected a number, not {value!r}")
    if value - value != 0:
        raise ValueError("expected a finite number")
    return value


@cache
def _made(chosen: Any) -> Any:
    own: dict[str, Any] = {name: _inner(getattr(chosen, name)) for name in _COMPILER_IS_IMPORTED_BY}
    step = _inner(chosen.step)

    def plain_step(self: Optimizer, closure: Callable[[], float] | None = None) -> float | None:
        with torch.no_grad():  # torch's wrapper does this too
            result: float | None = step(self, closure)
            return result

    if step is not chosen.step:
        own["step"] = plain_step
    return type(chosen.__name__, (chosen,), {"__module__": __name__, "__doc__": chosen.__doc__, **own})


def _inner(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function at the end of a chain of decorators."""
    while (wrapped := getattr(function, "__wrapped__", None)) is not None:
        function = wrapped
    return function
