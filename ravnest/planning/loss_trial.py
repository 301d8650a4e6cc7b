"""Tries a job's loss and metrics on what the model returns for one micro-batch, before hours are planned for it.

In: a job, the model's output with its gradients, and the target. Out: nothing, or an InvalidInput that names the job
file, the key `loss` or `metrics`, and the line in the user's code.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from ravnest.errors import InvalidInput, naming
from ravnest.factories import FactoryConfig, FunctionConfig, user_code
from ravnest.job.config import Job
from ravnest.job.materials import make_loss, search_dirs
from ravnest.splitting import CapturedModel, StageModule
from ravnest.splitting.gradients import noting_gradients
from ravnest.splitting.output_structure import shapes_of, tensors_by_path
from ravnest.training.batches import Inputs, Target, arguments, in_order, target_tensors
from ravnest.training.loss_parameters import loss_weights, module_with_parameters
from ravnest.training.losses import Loss, build_loss, build_metrics, outputs_read
from ravnest.training.named_measures import IGNORED_TARGET

_SAME_SUM = 1e-4
"""So far two sums of the same numbers may be apart, of themselves."""
_NAMED = 5  # the most names that an error lists


def check_gradients(
    job: Job,
    job_file: str | Path,
    captured: CapturedModel,
    weights: Mapping[str, Tensor],
    inputs: Inputs,
    target: Target,
) -> tuple[str, ...]:
    """Trains the whole captured model and the loss by one micro-batch, as one stage, without an update.

    weights: at least those of the model by name; the buffers among them may be changed. Returns the names of the
    parameters that the model would train and its forward never reads. Raises InvalidInput at `loss` where it gives no
    gradient to a parameter that is read, or where it changes buffers that nobody saves.
    """
    loss = make_loss(job, job_file) or build_loss(job.loss, search_dirs(job_file))
    module = module_with_parameters(loss)
    program = captured.span(0, len(captured.units))
    before = {} if loss.module is None else {name: tensor.clone() for name, tensor in loss.module.named_buffers()}
    stage = StageModule(program, {**weights, **loss_weights(loss)}, copy=False, loss=module).train()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(job.seed)
        given = in_order(inputs, [spec.name for spec in program.inputs])
        value = loss.mean(stage.returned(stage(*(tensor.clone() for tensor in given))), target)
        _require_known(value, {id(parameter) for parameter in stage.parameters()}, loss.name, job_file)
        if not value.requires_grad:
            message = f"{loss.name!r} depends on no parameter that is trained: nothing would be learned"
            raise InvalidInput(
                message, path=str(job_file), key="loss", hint="see `frozen`, and requires_grad in the model"
            )
        with noting_gradients([stage]) as gradients:
            value.backward()  # type: ignore[no-untyped-call]
    if loss.module is not None and module is None:
        changed = [name for name, now in loss.module.named_buffers() if not torch.equal(now, before.get(name, now))]
        if changed:
            message = f"{loss.name!r} changes its buffer {changed[0]!r}, and only a loss with parameters is saved"
            hint = "make it part of the model, or give the loss a parameter"
            raise InvalidInput(message, path=str(job_file), key="loss", hint=hint)
    idle = [name for name, parameter in stage.named_parameters() if parameter.requires_grad and name not in gradients]
    if idle:
        raise InvalidInput(
            f"no gradient of {loss.name!r} reaches {some(idle)}, which the model computes with",
            path=str(job_file),
            key="loss",
            hint="let the loss use what they compute, or name them in `frozen` if they are not to be trained",
        )
    return tuple(spec.name for spec in program.parameters if not spec.requires_grad)


def _require_known(value: Tensor, known: set[int], loss: str, job_file: str | Path) -> None:
    """Raises InvalidInput where the loss trains a parameter that is in no module that ravnest knows of."""
    stack, seen = [value.grad_fn], set()
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)
        if isinstance(variable, Tensor) and id(variable) not in known:
            message = f"{loss!r} uses a parameter of shape {tuple(variable.shape)} that it does not show"
            hint = "let the factory return a torch.nn.Module that has it as a parameter"
            raise InvalidInput(message, path=str(job_file), key="loss", hint=hint)
        stack += [after for after, _ in node.next_functions]


def check_target(job: Job, job_file: str | Path, inputs: Inputs, target: Target) -> str | None:
    """Looks for words whose target is the word itself, as labels of Hugging Face's language models are: those shift
    them inside, where nothing does so here.

    Returns a warning. Raises InvalidInput where the model is a causal language model of transformers, which would learn
    to repeat its input and show a loss near zero.
    """
    by_position, by_name = arguments(inputs)
    named = {**{f"input {place}": each for place, each in enumerate(by_position)}, **by_name}
    for wanted in target_tensors(target):
        words = wanted != IGNORED_TARGET
        if wanted.ndim < 2 or wanted.is_floating_point() or not words.any():
            continue
        # Of several inputs only the first: some models take what they are to say as another one.
        alike = [name for name, given in named.items() if given.shape == wanted.shape and given.dtype == wanted.dtype]
        if not alike or not torch.equal(named[alike[0]][words], wanted[words]):
            continue
        said = f"the target at each place is the word of {alike[0]!r} at that place"
        if _is_causal(job.model.huggingface):
            hint = f"shift it in the data: inputs[:-1], labels[1:], and {IGNORED_TARGET} where nothing is to be learnt"
            message = f"{said}, and labels are not shifted here: the model would learn to repeat its input"
            raise InvalidInput(message, path=str(job_file), key="data.factory", hint=hint)
        return f"{job_file}: {said}: is the model to repeat it? A language model's target is the next word"
    return None


def _is_causal(config: Mapping[str, Any] | None) -> bool:
    if config is None:
        return False
    classes = config.get("architectures") or ["ForCausalLM"]
    return any(str(name).endswith(("ForCausalLM", "LMHeadModel")) for name in classes)


def some(names: Sequence[str]) -> str:
    """The names in a row, for a message; the first few of many."""
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def check_measures(job: Job, job_file: str | Path, output: Any, target: Target) -> None:
    """Makes the job's loss and metrics, and tries them on an output of the model.

    Raises InvalidInput at `loss` or `metrics`.
    """
    dirs = search_dirs(job_file)
    with naming(job_file, "loss"):
        loss = build_loss(job.loss, dirs)
    with naming(job_file, "metrics"):
        metrics = build_metrics(job.metrics, dirs)
    tensors = tensors_by_path(output)
    if not tensors:
        return  # the capture says what is wrong with such a model
    select = outputs_read(job.loss, job.metrics)
    if select is not None:
        with naming(job_file):
            select(tuple(tensors))
    batch = f"on an output of {shapes_of(output)} and a target of {_kinds(target)}"
    plain = tree_map(_detached, output)
    with naming(job_file), user_code(f"{loss.name!r}, {batch},", key="loss"):
        value = loss.mean(output, target)
        loss.measure(plain, target)
    if any(tensor.requires_grad for tensor in tensors.values()) and not value.requires_grad:
        message = f"{loss.name!r} returned a number that does not depend on the model's output: it has no gradient"
        raise InvalidInput(message, path=str(job_file), key="loss")
    if isinstance(job.loss, FactoryConfig | FunctionConfig) and _is_a_sum(loss, plain, target):
        message = f"{loss.name!r} gives a sum: twice as much for a batch in which every sample stands twice"
        hint = "return the mean over the samples: gradients and held-out losses are averaged over batches"
        raise InvalidInput(message, path=str(job_file), key="loss", hint=hint)
    for metric in metrics:
        with naming(job_file), user_code(f"{metric.name!r}, {batch},", key="metrics"):
            metric.measure(plain, target)


def _is_a_sum(loss: Loss, output: Any, target: Target) -> bool:
    """Whether the loss is twice as large for a batch that has every sample twice. One that cannot be computed for such
    a batch, or that compares samples with each other, is none."""
    samples = next((tensor.shape[0] for tensor in target_tensors(target) if tensor.ndim), 0)

    def twice(value: Any) -> Any:
        of_samples = isinstance(value, Tensor) and value.ndim > 0 and value.shape[0] == samples
        return torch.cat([value, value]) if of_samples else value

    once = loss.measure(output, target)
    try:
        again = loss.measure(tree_map(twice, output), tree_map(twice, target))
    except Exception:  # noqa: BLE001 - the user's code need not take such a batch
        return False
    return once.mean != 0.0 and math.isclose(again.mean, 2 * once.mean, rel_tol=_SAME_SUM)


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) else value


def _kinds(target: Target) -> str:
    return ", ".join(
        f"{'' if path == 'output' else f'{path} '}{tuple(tensor.shape)} {tensor.dtype}"
        for path, tensor in tensors_by_path(target).items()
    )


def warn_of_idle(job_file: str | Path, model: nn.Module, idle: Sequence[str], warn: Callable[[str], None]) -> None:
    """Names the parameters that the user would train and that nothing reads of what the loss takes."""
    meant = dict(model.named_parameters())
    names = [name for name in idle if name in meant and meant[name].requires_grad]
    if names:
        warn(f"{job_file}: nothing that the loss takes depends on {some(names)}: they stay as they are")
