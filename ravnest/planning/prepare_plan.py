"""Makes a plan for a fleet: loads the job and its data, captures and checks the model, and asks the planner.

Decides the order of these steps and what the planner is told about the job. Knows neither the terminal nor
where the plan is written. Errors are those of the packages it calls.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import torch

from cluster_planner.advice.job_changes import most_of_a_round
from cluster_planner.formatting import counted
from cluster_planner.inputs.fleet import Fleet
from cluster_planner.plan import Plan
from cluster_planner.planner import make_plan
from cluster_planner.search.cluster_search import Step
from ravnest.errors import InvalidInput, naming
from ravnest.free_memory import free_bytes
from ravnest.job.config import load_job
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


def prepare_plan(
    fleet: Fleet,
    nodes_path: Path,
    job_path: Path,
    *,
    seed: int,
    step: Callable[[str], None],
    searched: Callable[[Step], None] | None = None,
) -> tuple[Plan, float]:
    """The plan for `fleet`, read from `nodes_path`, and the job of `job_path`; and the largest average_every to advise,
    in samples, for training that is as long as the job's `stop` says.

    `step` hears of each slow step as it begins, `searched` of each step of the planner's search.
    """
    _check_devices(fleet, nodes_path)
    job = load_job(job_path)
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
    step(f"checking {counted(len(captured.costs.units), 'unit')} against the model")
    with naming(job_path, "model"):
        verify(captured, model, args, kwargs)
    step(f"planning for {counted(len(fleet.nodes), 'node')}")
    with naming(nodes_path, "nodes"):
        plan = make_plan(
            fleet,
            captured.costs,
            workload(job),
            job=job.model_dump(mode="json"),
            job_file=str(job_path.resolve()),
            seed=seed,
            trained_samples=trained_samples,
            trained_s=trained_s,
            progress=searched,
        )
    check_shares(job, job_path, plan, len(data.train))
    return plan, most_of_a_round(trained_samples, trained_s, plan.predicted.samples_per_s)


def _check_devices(fleet: Fleet, nodes_path: Path) -> None:
    for i, node in enumerate(fleet.nodes):
        try:
            torch.device(node.device)
        except RuntimeError:
            message = f"torch knows no device {node.device!r}; expected one such as cpu, cuda or cuda:1"
            raise InvalidInput(message, path=str(nodes_path), key=f"nodes[{i}].device") from None
