"""Makes a plan for a fleet and a job.

In: a fleet and a job. Out: an `ExplainedPlan`, which is the plan and what is needed to explain it. The steps, in this
order, are: load the data, run the model once, capture it, check that the captured units reproduce it, ask the planner.

The user's code is tried on one micro-batch before hours are planned for it: the model's forward, the loss, the metrics
and the optimizer are run, the callable of `sample` is looked up, and the memory that all this takes is compared with
what is free. What fails is an InvalidInput that names the job file, the key and the line in the user's code.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from cluster_planner import (
    ConstraintCosts,
    Fleet,
    Plan,
    Step,
    format_count,
    make_plan,
    most_of_a_round,
    without_constraints,
)
from ravnest.errors import InvalidInput, naming
from ravnest.factories import resolve, user_code
from ravnest.formatting import size
from ravnest.free_memory import free_bytes
from ravnest.job.config import Job
from ravnest.job.materials import (
    capture_job,
    check_shares,
    first_batch,
    load_data,
    make_model,
    search_dirs,
    total_samples,
)
from ravnest.job.pretrained import pretrained_weights
from ravnest.planning.workload import workload
from ravnest.splitting import twin_of, verify
from ravnest.training.batches import arguments
from ravnest.training.losses import build_loss, build_metrics
from ravnest.training.optimizer import build_optimizer

MOST_SEED = 2**32 - 1
"""The largest seed that k-means takes."""


NOTHING_RELAXED = ConstraintCosts()


@dataclass(frozen=True)
class ExplainedPlan:
    """A plan, how it was found, and what would change it."""

    plan: Plan
    search: tuple[Step, ...]
    """The steps of the planner's search, in order."""
    largest_round: float
    """The largest `average_every` to advise, in samples, for a training as long as the job's `stop` says."""
    relaxed: ConstraintCosts = NOTHING_RELAXED
    """What the plan would gain without single constraints of nodes.yaml, where that was asked for."""


def prepare_plan(
    fleet: Fleet,
    job: Job,
    *,
    fleet_path: str | None = None,
    seed: int = 0,
    explain: bool = False,
    step: Callable[[str], None],
) -> ExplainedPlan:
    """The plan for a fleet and a job.

    Arguments:
        fleet_path: the file that the fleet was read from, for errors; None for a fleet made in Python.
        seed: of the planner's search, from 0 to MOST_SEED.
        explain: whether to plan again without single constraints, to see what each of them costs.
        step: is told of each slow step as it begins.

    Raises:
        InvalidInput: at a key of the job or the fleet. NoFeasiblePlan where the two do not fit each other.
    """
    if not 0 <= seed <= MOST_SEED:
        raise InvalidInput(f"must be from 0 to {MOST_SEED}, not {seed}", key="seed")
    job_path = job.file
    searched: list[Step] = []
    _check_devices(fleet, fleet_path)
    step("loading the data")
    check_sample(job, job_path)
    data = load_data(job, job_path)
    total = total_samples(job, len(data.train), job_path)
    trained_samples = math.inf if total is None else float(total)
    trained_s = math.inf if job.stop.minutes is None else 60.0 * job.stop.minutes
    inputs, target = first_batch(job, job_path, data)
    args, kwargs = arguments(inputs)
    step("running the model on the first micro-batch")
    check_room(job_path, make_model(job, job_path, "meta"), free_bytes())
    model = make_model(job, job_path, "cpu")
    check_optimizer(job, job_path, model)
    check_measures(job, job_path, run_once(model, args, kwargs, job_path), target)
    step("capturing the model")
    captured = capture_job(job, job_path, data)
    pretrained_weights(job, job_path, captured)
    step(f"checking {format_count(len(captured.costs.units), 'unit')} against the model")
    with naming(job_path, "model"):
        verify(captured, model, args, kwargs)
    step(f"planning for {format_count(len(fleet.nodes), 'node')}")
    with nullcontext() if fleet_path is None else naming(fleet_path, "nodes"):
        plan = make_plan(
            fleet,
            captured.costs,
            workload(job),
            job=job.model_dump(mode="json"),
            job_file=str(job_path),
            seed=seed,
            trained_samples=trained_samples,
            trained_s=trained_s,
            progress=searched.append,
        )
    check_shares(job, job_path, plan, len(data.train))
    largest_round = most_of_a_round(trained_samples, trained_s, plan.predicted.samples_per_s)
    relaxed = without_constraints(plan, tell=step) if explain else NOTHING_RELAXED
    return ExplainedPlan(plan, tuple(searched), largest_round, relaxed)


def _check_devices(fleet: Fleet, fleet_path: str | None) -> None:
    for i, node in enumerate(fleet.nodes):
        try:
            torch.device(node.device)
        except RuntimeError:
            message = f"torch knows no device {node.device!r}; expected one such as cpu, cuda or cuda:1"
            raise InvalidInput(message, path=fleet_path, key=f"nodes[{i}].device") from None


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
