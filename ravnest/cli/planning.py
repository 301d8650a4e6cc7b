"""Makes a plan for a fleet: loads the job and its data, captures and checks the model, and asks the planner.

Decides the order of these steps and what the planner is told about the job. Knows neither the terminal nor
where the plan is written. Errors are those of the packages it calls.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from cluster_planner.costs import Workload
from cluster_planner.fleet import Fleet
from cluster_planner.plan import Plan
from cluster_planner.planner import make_plan
from ravnest.job import JobConfig, load_job
from ravnest.materials import capture_job, load_data, make_model
from ravnest.runtime.batches import sample_batch
from ravnest.splitting import verify
from ravnest.training.optimizer import state_bytes_per_parameter_byte

PROCESS_BYTES = 256 << 20
"""What a stage's process holds before any tensor of the model: Python, torch and Ray, private pages only.

Measured as psutil's `memory_full_info().uss` after importing torch, ray, zmq and safetensors and making one
optimizer step: 254 MiB on x86-64 with torch 2.13.0 for CPU.
"""


def prepare_plan(fleet: Fleet, job_path: Path, *, seed: int, step: Callable[[str], None]) -> Plan:
    """The plan for `fleet` and the job of `job_path`; `step` hears of each slow step as it begins."""
    job = load_job(job_path)
    step("loading the data")
    data = load_data(job, job_path)
    step("capturing the model")
    captured = capture_job(job, job_path, data)
    step(f"checking {len(captured.costs.units)} units against the model")
    verify(captured, make_model(job, job_path, "cpu"), sample_batch(data, job.micro_batch)[0])
    step(f"planning for {len(fleet.nodes)} nodes")
    return make_plan(
        fleet,
        captured.costs,
        workload(job),
        job=job.model_dump(mode="json"),
        job_file=str(job_path.resolve()),
        seed=seed,
    )


def workload(job: JobConfig) -> Workload:
    """The parts of a job that change its cost."""
    return Workload(
        micro_batch=job.micro_batch,
        update_every=job.update_every,
        max_staleness=job.max_staleness,
        average_every=job.average_every,
        max_lag=job.max_lag,
        optimizer_state_bytes_per_parameter_byte=state_bytes_per_parameter_byte(job.optimizer),
        process_bytes=PROCESS_BYTES,
    )
