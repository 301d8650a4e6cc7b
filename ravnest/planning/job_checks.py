"""Tries what a job names before hours are planned for it: its forward, its optimizer, its buffers' rules, its `sample`.

In: a job, and its model or its capture. Out: nothing, or an InvalidInput that names the job file and the key.
"""

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cluster_planner import Fleet
from ravnest.errors import InvalidInput, naming
from ravnest.factories import resolve, user_code
from ravnest.job.config import Job
from ravnest.job.materials import make_loss, search_dirs
from ravnest.planning.model_checks import untouched_generators
from ravnest.splitting import CapturedModel, twin_of
from ravnest.training.loss_parameters import loss_parameters
from ravnest.training.optimizer import build_optimizer, partition
from ravnest.training.parameter_groups import check_groups


def check_sample(job: Job, job_file: str | Path) -> None:
    """Looks up the job's `sample`, which is called only after training. Raises InvalidInput where it is not there."""
    if job.sample is not None:
        resolve(job.sample.factory, search_dirs(job_file), path=str(job_file), key="sample.factory")


def check_buffers(job: Job, job_file: str | Path, captured: CapturedModel) -> None:
    """Raises InvalidInput where `averaging.buffers` does not fit the buffers that the model saves."""
    saved = [spec for spec in captured.span(0, len(captured.units)).buffers if spec.persistent]
    floating = [spec.name for spec in saved if spec.dtype.is_floating_point]
    with naming(job_file):
        job.averaging.check_buffers(floating, [spec.name for spec in saved if spec.name not in floating])


def run_once(
    model: nn.Module,
    args: tuple[Tensor, ...],
    kwargs: Mapping[str, Tensor],
    job_file: str | Path,
    seed: int = 0,
    *,
    twin: nn.Module | None = None,
) -> Any:
    """What the model returns for a batch in training, with gradients, after torch.manual_seed(seed).

    twin: the copy of the model (`twin_of`) that is run and may change; None: one is made. Neither the model, which is
    on the CPU, nor any generator of random numbers is changed. Raises InvalidInput where the model's own forward
    raises.
    """
    name = type(model).__name__
    try:
        inspect.signature(model.forward).bind(*args, **kwargs)
    except TypeError as error:
        given = ", ".join(kwargs) or len(args)
        message = f"{name}.forward does not take the inputs of a sample ({given}): {error}"
        hint = "data.inputs names the keys of a sample that the model takes" if kwargs else None
        raise InvalidInput(message, path=str(job_file), key="model", hint=hint) from error
    with naming(job_file):
        twin = (twin_of(model) if twin is None else twin).train()
    tensors = (*args, *kwargs.values())
    shapes = ", ".join(f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}" for tensor in tensors)
    with (
        torch.random.fork_rng(devices=[]),
        untouched_generators(),
        user_code(f"the forward of {name}, on the first micro-batch ({shapes}),", path=str(job_file), key="model"),
    ):
        torch.manual_seed(seed)
        return twin(*(tensor.clone() for tensor in args), **{key: tensor.clone() for key, tensor in kwargs.items()})


def check_optimizer(job: Job, job_file: str | Path, model: nn.Module) -> None:
    """Raises InvalidInput at `optimizer` where the optimizer cannot train one of the model's parameters, or where a
    group has none."""
    parameters = {**dict(model.named_parameters()), **loss_parameters(make_loss(job, job_file))}
    trained = {name: parameter for name, parameter in parameters.items() if parameter.requires_grad}
    with naming(job_file):
        check_groups(job.optimizer.groups, tuple(trained))
    for config, names in partition(job.optimizer, trained):
        for name in names:
            try:
                build_optimizer(config, [(name, nn.Parameter(torch.empty_like(trained[name], device="meta")))])
            except InvalidInput as error:
                message = f"cannot train {name!r}: {error.message}"
                raise InvalidInput(message, path=str(job_file), key="optimizer") from None


def of_loaded_weights(job: Job, sources: Sequence[str]) -> str:
    """What the user should know whose factory loads weights."""
    if job.initial_weights is not None:
        return f"model.factory loads weights ({sources[0]}), and initial_weights takes their place"
    return (
        f"model.factory loads weights ({sources[0]}): training starts from them. Each start of a run loads them again,"
        " with the whole model in memory. Named in initial_weights instead, they are checked by name, and each stage is"
        " sent its own"
    )


def check_devices(fleet: Fleet, fleet_path: str | None) -> None:
    """Raises InvalidInput for a device of a node that torch does not know by name."""
    for i, node in enumerate(fleet.nodes):
        try:
            torch.device(node.device)
        except RuntimeError:
            message = f"torch knows no device {node.device!r}; expected one such as cpu, cuda or cuda:1"
            raise InvalidInput(message, path=fleet_path, key=f"nodes[{i}].device") from None
