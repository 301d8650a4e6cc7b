"""What no plan could train: a model that is frozen or has complex weights, and what a captured graph would leave out.

In: a model and a micro-batch. Out: nothing, or an InvalidInput that names what is wrong. A captured graph holds what a
forward did once: a number that Python or numpy drew, or that an attribute counts, is a constant in it. What torch draws
is drawn in each forward, and so is carried (each stage has a stream of its own). A graph holds operations and no
Python: a hook of the user's that changes gradients would be left out. An autograd.Function is carried whole.
"""

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointFunction

from ravnest.errors import InvalidInput, naming
from ravnest.factories import user_code
from ravnest.job.config import Job
from ravnest.planning.loss_trial import some
from ravnest.splitting import CapturedModel, twin_of

_TOLERANCE = 1e-4
"""The largest difference between two forwards, relative to the largest magnitude: kernels may add in another order."""
_WHAT_TO_DO = (
    "a captured model would repeat what was drawn at planning in every forward. Draw with torch (torch.rand), in"
    " tensors, instead"
)


def check_trains(captured: CapturedModel, model: nn.Module, job_file: str | Path) -> None:
    """Raises InvalidInput where nothing of the model is trained."""
    whole = captured.span(0, len(captured.units))
    if any(spec.requires_grad for spec in whole.parameters):
        return
    frozen = [name for name, parameter in model.named_parameters() if not parameter.requires_grad]
    if len(frozen) == len(whole.parameters):
        said = f"all {len(frozen)} parameters are frozen (requires_grad is False: {frozen[0]!r}, …)"
    else:
        said = "all parameters that the forward uses are frozen"
    raise InvalidInput(f"{said}: there is nothing to train", path=str(job_file), key="model")


def check_numbers(captured: CapturedModel, job_file: str | Path) -> None:
    """Raises InvalidInput for complex weights, which rounds of averaging would take for real ones."""
    whole = captured.span(0, len(captured.units))
    for spec in (*whole.parameters, *(buffer for buffer in whole.buffers if buffer.persistent)):
        if spec.dtype.is_complex and (spec.requires_grad or spec in whole.buffers):
            message = (
                f"{spec.name!r} is {spec.dtype}, and weights are averaged and saved as real numbers: hold its real and"
                " imaginary parts in a last dimension of 2, and use torch.view_as_complex"
            )
            raise InvalidInput(message, path=str(job_file), key="model")


def of_taken_buffers(job: Job, job_file: str | Path, captured: CapturedModel) -> str:
    """A warning that names the buffers that training changes and that rounds take from one cluster."""
    program = captured.span(0, len(captured.units))
    learned = [spec.name for spec in program.buffers if spec.persistent and spec.dtype.is_floating_point]
    names = [name for name in learned if name in program.changed and job.averaging.rule_of(name) == "first"]
    if not names:
        return ""
    return (
        f"{job_file}: in each round all clusters take the values of one for {some(names)}, which are no running"
        " statistics by their names; averaging.buffers can say average or local"
    )


def check_forwards(
    model: nn.Module,
    args: tuple[Tensor, ...],
    kwargs: Mapping[str, Tensor],
    job_file: str | Path,
    first: Any,
    seed: int = 0,
    *,
    warm: nn.Module | None = None,
) -> None:
    """Raises InvalidInput for what the model's code does and a captured graph would not carry.

    That is, in either mode: to draw from the generators of Python or numpy, the module's own included, or to give other
    outputs each time though torch's seed is the same. In training: to change gradients by a hook on those of a
    parameter, a module or a tensor of the forward; to checkpoint re-entrantly; and to change a number, a truth value or
    a text that the model has as a plain attribute (`self.step += 1`) in each forward. Whether it makes a difference in
    this micro-batch does not count: a hook that cuts off large gradients would show only later.

    first: what `run_once` gave for the model with the same seed. A forward of a large model takes seconds, so none is
    run that another one can stand for. Neither the model, which is on the CPU, nor the generators are changed.
    warm: the copy of the model that gave `first`. Where it gives the same once more and changes none of its attributes,
    that shows both, and one forward less is run.
    """

    def refuse(said: str, hint: str | None = None) -> None:
        raise InvalidInput(said, path=str(job_file), key="model", hint=hint)

    if (hooked := _hooked(model)) is not None:
        refuse(f"{hooked} has a hook on its gradients, which stages do not call", _INSTEAD_OF_HOOKS)
    forward = f"the forward of {type(model).__name__}"

    def drawing(twin: nn.Module) -> Any:
        """What the forward returns. Refuses one that draws from a generator that is not torch's."""
        before = _states(twin)
        with untouched_generators():
            output = seeded_forward(twin, args, kwargs, job_file, seed)
            drawn = sorted(name for name, state in _states(twin).items() if state != before.get(name))
        if drawn:
            refuse(f"{forward} in {_mode(twin)} draws from {drawn[0]}: {_WHAT_TO_DO}")
        return output

    def require_alike(twin: nn.Module, one: Any, other: Any) -> None:
        if not _alike(_tensors(one), _tensors(other)):
            refuse(
                f"{forward} in {_mode(twin)} gives other outputs each time, though torch's seed is the same: it depends"
                f" on a clock or draws random numbers elsewhere; {_WHAT_TO_DO}"
            )

    def require_unchanged(twin: nn.Module) -> None:
        """Refuses a forward that changes an attribute each time. `twin` has run once."""
        before = _plain_attributes(twin)  # what only the first forward changes is a cache
        with untouched_generators():
            seeded_forward(twin, args, kwargs, job_file, seed)
        for name, value in _plain_attributes(twin).items():
            if name in before and value != before[name]:
                said = f"{forward} changes its attribute {name!r} each time (from {before[name]!r} to {value!r}): in a"
                refuse(f"{said} captured graph it would stay what it was at planning", _INSTEAD_OF_COUNTING)

    twin = _twin(model, job_file).train() if warm is None else warm
    before = _plain_attributes(twin)
    with _noting_hooks() as shapes:
        output = drawing(twin)
    repeats = warm is not None and _alike(_tensors(first), _tensors(output)) and before == _plain_attributes(twin)
    # What a copy changes in itself may be why it gives something else. What is changed elsewhere may come round again.
    for _ in range(0 if warm is None or repeats else 2):
        require_alike(twin := _twin(model, job_file).train(), first, output := drawing(twin))
    require_alike(twin, first, output)
    if shapes:
        said = f"{forward} puts a hook on the gradients of a tensor of shape {shapes[0]}, which stages do not call"
        refuse(said, _INSTEAD_OF_HOOKS)
    if _checkpoints_re_entrantly(output):
        said = f"{forward} uses torch.utils.checkpoint with use_reentrant=True, whose inside a captured graph cuts off"
        refuse(said, _INSTEAD_OF_RE_ENTRANT)
    del output
    if not repeats:
        require_unchanged(twin)
    twin = _twin(model, job_file).eval()
    output = drawing(twin)
    require_alike(twin, output, drawing(_twin(model, job_file).eval()))


def seeded_forward(
    twin: nn.Module, args: tuple[Tensor, ...], kwargs: Mapping[str, Tensor], job_file: str | Path, seed: int = 0
) -> Any:
    """What a model returns after torch.manual_seed(seed), which leaves torch's generator as it was."""
    with (
        torch.random.fork_rng(devices=[]),
        user_code(f"the forward of {type(twin).__name__} in {_mode(twin)}", path=str(job_file), key="model"),
    ):
        torch.manual_seed(seed)
        return twin(*(tensor.clone() for tensor in args), **{key: value.clone() for key, value in kwargs.items()})


_INSTEAD_OF_HOOKS = "remove it; `frozen` and optimizer.clip_norm in the job are carried, and so are torch's operations"
_INSTEAD_OF_RE_ENTRANT = "say use_reentrant=False, or leave it out: activation_checkpointing in the job does the same"
_INSTEAD_OF_COUNTING = "make it a buffer (register_buffer) and compute with that, or leave it out"


def _twin(model: nn.Module, job_file: str | Path) -> nn.Module:
    with naming(job_file):
        return twin_of(model)


def _mode(model: nn.Module) -> str:
    return "training" if model.training else "evaluation"


def _tensors(output: Any) -> list[Tensor]:
    return [leaf for leaf in torch.utils._pytree.tree_leaves(output) if isinstance(leaf, Tensor)]


def _hooked(model: nn.Module) -> str | None:
    """The first parameter or module with a hook on its gradients, by what a message calls it."""
    for name, parameter in model.named_parameters():
        if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
            return f"the parameter {name!r}"
    for name, module in model.named_modules():
        if module._backward_hooks or module._backward_pre_hooks:
            return f"the module {name!r}" if name else "the model"
    return None


@contextmanager
def _noting_hooks() -> Iterator[list[tuple[int, ...]]]:
    """Notes the shapes of the tensors that are given a hook on their gradients while the block runs."""
    noted: list[tuple[int, ...]] = []
    original = Tensor.register_hook

    def register(self: Tensor, hook: Any) -> Any:
        noted.append(tuple(self.shape))
        return original(self, hook)  # type: ignore[no-untyped-call]

    Tensor.register_hook = register  # type: ignore[method-assign]
    try:
        yield noted
    finally:
        Tensor.register_hook = original  # type: ignore[method-assign]


def _checkpoints_re_entrantly(output: Any) -> bool:
    """Whether gradients of the output would pass through a re-entrant checkpoint."""
    stack, seen = [leaf.grad_fn for leaf in _tensors(output)], set()
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if getattr(node, "_forward_cls", None) is CheckpointFunction:
            return True
        stack += [after for after, _ in node.next_functions]
    return False


def _plain_attributes(model: nn.Module) -> dict[str, object]:
    return {
        f"{path}.{name}" if path else name: value
        for path, module in model.named_modules()
        for name, value in vars(module).items()
        if isinstance(value, bool | int | float | complex | str)
    }


@contextmanager
def untouched_generators() -> Iterator[None]:
    """Whatever is drawn inside, the generators of Python and numpy are then as they were."""
    python, numpys = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpys)


def _states(model: nn.Module) -> dict[str, object]:
    """The state of each generator that the forward may draw from, by what a message calls it."""
    states: dict[str, object] = {
        "Python's random": random.getstate(),
        "numpy.random": repr(np.random.get_state()),
    }
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            state = _state(value)
            if state is not None:
                states[f"the generator {f'{path}.{name}' if path else name!r}"] = state
    return states


def _state(value: object) -> object:
    match value:
        case random.Random():
            return value.getstate()
        case np.random.Generator():
            return repr(value.bit_generator.state)
        case np.random.RandomState():
            return repr(value.get_state())
    return None


def _alike(first: list[Tensor], second: list[Tensor]) -> bool:
    if [tensor.shape for tensor in first] != [tensor.shape for tensor in second]:
        return False
    for a, b in zip(first, second, strict=True):
        if torch.equal(a, b) or not a.numel():
            continue
        if not (a.is_floating_point() or a.is_complex()):
            return False
        scale = float(a.detach().abs().nan_to_num().max())
        if not torch.allclose(a.detach(), b.detach(), rtol=0.0, atol=_TOLERANCE * scale, equal_nan=True):
            return False
    return True
