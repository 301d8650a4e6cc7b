"""Runs the user's code once, on one micro-batch, before hours are planned for it.

In: a job, its model and one micro-batch. Out: nothing, or an InvalidInput that names the job file, the key and the line
in the user's code. The model's forward, the loss, the metrics and the optimizer are tried, the callable of `sample` is
looked up, and the memory that all this takes is compared with what is free.
"""

import inspect
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from ravnest.errors import InvalidInput, naming
from ravnest.factories import resolve, user_code
from ravnest.formatting import size
from ravnest.job.config import Job
from ravnest.job.materials import search_dirs
from ravnest.splitting import twin_of
from ravnest.training.losses import build_loss, build_metrics
from ravnest.training.optimizer import build_optimizer


def check_sample(job: Job, job_file: str | Path) -> None:
    """Looks up the job's `sample`, which is called only after training. Raises InvalidInput where it is not there."""
    if job.sample is not None:
        resolve(job.sample.factory, search_dirs(job_file), path=str(job_file), key="sample.factory")


def check_room(job_file: str | Path, model: nn.Module, free_bytes: int) -> None:
    """Raises InvalidInput where trying `model`, which is on the meta device, takes more memory than `free_bytes`.

    Without this check the kernel would end the command, and nobody would be told why.
    """
    weights = sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))
    gradients = sum(parameter.nbytes for parameter in model.parameters() if parameter.requires_grad)
    # The model beside its stages, and the gradients of three comparisons; activations come on top.
    needed = 2 * weights + 3 * gradients
    if needed > free_bytes:
        raise InvalidInput(
            f"has {size(weights)} of weights; to check it against its stages, planning holds it twice and its gradients"
            f" three times, which takes {size(needed)}, and this machine has {size(free_bytes)} left: plan on a larger"
            " one",
            path=str(job_file),
            key="model",
        )


def run_once(
    model: nn.Module, args: tuple[Tensor, ...], kwargs: Mapping[str, Tensor], job_file: str | Path
) -> Tensor | None:
    """The first tensor that the model returns for a batch in training, with gradients; None where it returns none.

    The model, which is on the CPU, is not changed. Raises InvalidInput where its own forward raises.
    """
    name = type(model).__name__
    try:
        inspect.signature(model.forward).bind(*args, **kwargs)
    except TypeError as error:
        given = ", ".join(kwargs) or len(args)
        message = f"{name}.forward does not take the inputs of a sample ({given}): {error}"
        raise InvalidInput(message, path=str(job_file), key="model") from error
    with naming(job_file):
        twin = twin_of(model).train()
    tensors = (*args, *kwargs.values())
    shapes = ", ".join(f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}" for tensor in tensors)
    with (
        torch.random.fork_rng(devices=[]),
        user_code(f"the forward of {name}, on the first micro-batch ({shapes}),", path=str(job_file), key="model"),
    ):
        found = twin(*(tensor.clone() for tensor in args), **{key: tensor.clone() for key, tensor in kwargs.items()})
    leaves = torch.utils._pytree.tree_leaves(found)
    return leaves[0] if leaves and isinstance(leaves[0], Tensor) else None


def check_optimizer(job: Job, job_file: str | Path, model: nn.Module) -> None:
    """Raises InvalidInput at `optimizer` where the optimizer cannot train one of the model's parameters."""
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            try:
                build_optimizer(job.optimizer, [(name, nn.Parameter(torch.empty_like(parameter, device="meta")))])
            except InvalidInput as error:
                message = f"cannot train {name!r}: {error.message}"
                raise InvalidInput(message, path=str(job_file), key="optimizer") from None


def check_measures(job: Job, job_file: str | Path, output: Tensor | None, target: Tensor) -> None:
    """Makes the job's loss and metrics, and tries them on an output of the model, where there is one.

    Raises InvalidInput at `loss` or `metrics`.
    """
    dirs = search_dirs(job_file)
    with naming(job_file, "loss"):
        loss = build_loss(job.loss, dirs)
    with naming(job_file, "metrics"):
        metrics = build_metrics(job.metrics, dirs)
    if output is None:
        return
    batch = f"on an output of {tuple(output.shape)} and a target of {tuple(target.shape)} {target.dtype}"
    with naming(job_file), user_code(f"{loss.name!r}, {batch},", key="loss"):
        value = loss.mean(output, target)
        loss.measure(output.detach(), target)
    if output.requires_grad and not value.requires_grad:
        message = f"{loss.name!r} returned a number that does not depend on the model's output: it has no gradient"
        raise InvalidInput(message, path=str(job_file), key="loss")
    for metric in metrics:
        with naming(job_file), user_code(f"{metric.name!r}, {batch},", key="metrics"):
            metric.measure(output.detach(), target)
