"""What a job costs: the keys of a job that change a plan, as the planner takes them.

In: a job. Out: the planner's `Workload`. A plan that was edited so that its job and its workload disagree is refused
here, too.
"""

from dataclasses import replace
from pathlib import Path

from cluster_planner import PROCESS_BYTES, ModelCosts, Plan, Workload
from ravnest.errors import InvalidInput
from ravnest.job.config import Job, job_from_mapping
from ravnest.splitting import CapturedModel
from ravnest.training.optimizer_memory import state_bytes, state_bytes_per_parameter_byte
from ravnest.training.precision import bytes_per_float32_byte

EVALUATION_MICRO_BATCHES = 4
"""The micro-batches that are evaluated at once: without a graph to keep, larger batches cost no more memory."""

READER_BYTES = 320 << 20
"""What a process that reads ahead holds: Python, torch and ravnest, 240 MiB, and room for its batches. What the data
factory itself loads comes on top, in stages and readers alike, and is not planned for."""

_OF_THE_JOB = {
    "micro_batch": "job.micro_batch",
    "update_every": "job.update_every",
    "max_staleness": "job.max_staleness",
    "average_every": "job.average_every",
    "max_lag": "job.max_lag",
    "schedule": "job.schedule",
    "cast_bytes_per_parameter_byte": "what job.precision casts",
    "splits_backward": "what job.split_backward, job.schedule and job.precision allow",
    "activation_checkpointing": "job.activation_checkpointing",
    "tied": "job.tied",
    "optimizer_state_bytes_per_parameter_byte": "what job.optimizer needs",
    "averaged_bytes_per_parameter_byte": "what job.averaging.wire takes",
    "activation_wire_ratio": "what job.wire.activations takes",
    "gradient_wire_ratio": "what job.wire.gradients takes",
    "averaging_state_bytes_per_parameter_byte": "what job.averaging keeps",
    "robust_averaging": "what job.averaging.robust needs",
    "hierarchical_averaging": "job.averaging.hierarchical",
}


def workload(job: Job, reading_s: float = 0.0, readers: int = 0) -> Workload:
    """The parts of a job that change its cost; without staleness where the planner has yet to choose it.

    `reading_s`: the seconds in which a process reads a micro-batch. `readers`: the processes that read ahead in each
    first and last stage.
    """
    return Workload(
        micro_batch=job.micro_batch,
        update_every=job.update_every,
        max_staleness=0 if job.max_staleness == "auto" else job.max_staleness,
        average_every=job.average_every,
        max_lag=job.max_lag,
        optimizer_state_bytes_per_parameter_byte=state_bytes_per_parameter_byte(job.optimizer),
        process_bytes=PROCESS_BYTES,
        averaged_bytes_per_parameter_byte=job.averaging.wire_bytes_per_parameter_byte,
        averaging_state_bytes_per_parameter_byte=job.averaging.state_bytes_per_parameter_byte(job.max_lag),
        robust_averaging=job.averaging.rule is not None,
        hierarchical_averaging=job.averaging.hierarchical,
        activation_wire_ratio=bytes_per_float32_byte(job.wire.activations),
        gradient_wire_ratio=bytes_per_float32_byte(job.wire.gradients),
        schedule=job.schedule,
        splits_backward=_may_split(job),
        cast_bytes_per_parameter_byte=0.0 if job.precision == "float32" else 0.5,
        activation_checkpointing=job.activation_checkpointing,
        tied=job.tied,
        reading_s=reading_s,
        readers=readers,
        reader_bytes=READER_BYTES if readers else 0,
    )


def with_optimizer(captured: CapturedModel, job: Job) -> ModelCosts:
    """The costs of a captured model with what the job's optimizer keeps for each unit, where shapes tell it."""
    held = [state_bytes(job.optimizer, specs) for specs in captured.parameters_by_unit()]
    units = [replace(unit, optimizer_bytes=size) for unit, size in zip(captured.units, held, strict=True)]
    return replace(captured.costs, units=tuple(units))


def evaluation_batch(job: Job, captured: CapturedModel) -> int:
    """How many samples of the held-out set a stage evaluates at once."""
    return job.micro_batch * (EVALUATION_MICRO_BATCHES if captured.batch_is_dynamic else 1)


def _may_split(job: Job) -> bool:
    """Whether stages may split backwards: never with float16, whose backward may have to run again, and with a
    synchronous schedule only where the job demands it.
    """
    if job.precision == "float16":
        return False
    return job.split_backward == "always" or (job.split_backward == "auto" and job.schedule == "async")


def check_job_of_plan(plan: Plan, path: str | Path) -> None:
    """Raises InvalidInput where the job in the plan, which was read from `path`, is not valid or asks for another
    workload than the plan's. A plan that was made in code may hold no job.
    """
    if plan.job:
        check_workload(plan, job_from_mapping(plan.job, path=str(path), under="job."), path)


def check_workload(plan: Plan, job: Job, path: str | Path) -> None:
    """Raises InvalidInput where the plan, which was read from `path`, was made for another workload than its job's."""
    if job.max_staleness == "auto":
        message = f"is auto, but a plan has a number: plan again, or write {plan.workload.max_staleness}"
        raise InvalidInput(message, path=str(path), key="job.max_staleness")
    planned, wanted = plan.workload, workload(job)
    for name, source in _OF_THE_JOB.items():
        found, expected = getattr(planned, name), getattr(wanted, name)
        if found != expected:
            raise InvalidInput(
                f"is {found}, but {source} is {expected}: plan again, or undo the change",
                path=str(path),
                key=f"workload.{name}",
            )
    if job.data.workers not in (None, planned.readers):
        message = f"is {planned.readers}, but job.data.workers is {job.data.workers}: plan again, or undo the change"
        raise InvalidInput(message, path=str(path), key="workload.readers")
