"""Makes a plan for a fleet and a job.

In: a fleet and a job. Out: an `ExplainedPlan`, which is the plan and what is needed to explain it. The steps, in this
order, are: load the data, run the model once, capture it, check that the captured units reproduce it, ask the planner.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

import torch

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
from ravnest.free_memory import free_bytes
from ravnest.job.config import Job
from ravnest.job.materials import (
    capture_job,
    check_shares,
    first_batch,
    load_data,
    make_model,
    total_samples,
)
from ravnest.job.pretrained import pretrained_weights
from ravnest.planning.trial import check_measures, check_optimizer, check_room, check_sample, run_once
from ravnest.planning.workload import workload
from ravnest.splitting import verify
from ravnest.training.batches import arguments

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
