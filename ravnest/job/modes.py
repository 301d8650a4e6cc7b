"""How a job is trained, by a plan over known nodes or by volunteers who come and go, and when that ends.

In: the keys of a job. Out: its `stop` section; a ValueError that begins with the key that does not fit its mode.
"""

from typing import Literal, Protocol, Self

from pydantic import model_validator

from ravnest.job_sections import PositiveFloat, PositiveInt, Section
from ravnest.training.averaging import AveragingConfig
from ravnest.training.precision import Precision

Mode = Literal["planned", "collaborative"]
ReadyProcesses = Literal["auto", "always", "never"]

PLANNED_ONLY = {
    *("initial_weights", "update_every", "schedule", "max_staleness", "split_backward", "activation_checkpointing"),
    *("experts", "tied", "average_every", "max_lag", "wire", "wait_for_driver_minutes", "ready_processes"),
    *("sample", "report_to"),
}
"""Keys that say how a plan is run, and what a collaboration cannot do yet."""


class StopConfig(Section):
    """The end of the run: exactly one of the three is given, counted over the whole fleet."""

    samples: PositiveInt | None = None
    """Training samples."""

    epochs: PositiveFloat | None = None
    """Passes over the training set."""

    minutes: PositiveFloat | None = None
    """Minutes of training, from the first micro-batch on."""

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        given = [name for name, value in self if value is not None]
        if len(given) != 1:
            found = " and ".join(given) if given else "none"
            raise ValueError(f"give exactly one of samples, epochs or minutes, not {found}")
        return self


class Moded(Protocol):
    """The keys of a job that its mode is about."""

    @property
    def mode(self) -> Mode: ...
    @property
    def target_batch(self) -> int | None: ...
    @property
    def delayed_step(self) -> bool: ...
    @property
    def gradient_rank(self) -> int | None: ...
    @property
    def spot_check_share(self) -> float: ...
    @property
    def micro_batch(self) -> int: ...
    @property
    def precision(self) -> Precision: ...
    @property
    def averaging(self) -> AveragingConfig: ...
    @property
    def stop(self) -> StopConfig: ...
    @property
    def model_fields_set(self) -> set[str]: ...


def check_mode(job: Moded) -> None:
    """Raises ValueError where the keys that were written down do not fit the job's mode."""
    if job.mode == "planned":
        if job.target_batch is not None:
            raise ValueError("target_batch: only mode collaborative has one; a plan has update_every")
        if job.delayed_step:
            raise ValueError("delayed_step: only mode collaborative delays steps; a plan has max_staleness")
        if job.gradient_rank is not None:
            raise ValueError("gradient_rank: only mode collaborative sends gradients; rounds have averaging.wire")
        if job.spot_check_share:
            raise ValueError("spot_check_share: only mode collaborative checks volunteers")
        return
    if job.target_batch is None:
        raise ValueError("target_batch: mode collaborative needs one: how many samples make a step")
    if job.target_batch < job.micro_batch:
        raise ValueError(f"target_batch: {job.target_batch} is less than one micro_batch ({job.micro_batch})")
    if written := PLANNED_ONLY & job.model_fields_set:
        key = "schedule" if "schedule" in written else min(written)  # a synchronous one has set max_staleness, too
        raise ValueError(f"{key}: has no meaning in mode collaborative; leave it out")
    if job.stop.samples is not None and job.stop.samples < job.target_batch:
        raise ValueError(f"stop.samples: {job.stop.samples} is less than one step (target_batch = {job.target_batch})")
    if job.delayed_step and job.spot_check_share:
        raise ValueError(
            "spot_check_share: expected 0 with delayed_step: gradients are of weights that the backbone has no more"
        )
    if job.gradient_rank is not None:
        if job.spot_check_share:
            raise ValueError("spot_check_share: expected 0 with gradient_rank: what travels is no sum of gradients")
        if job.averaging.wire not in ("float32", "bfloat16", "float16"):
            raise ValueError(
                f"averaging.wire: expected float32, bfloat16 or float16 with gradient_rank, not {job.averaging.wire}"
            )
    if job.precision == "float16":
        raise ValueError("precision: mode collaborative takes float32 or bfloat16")
    usual = AveragingConfig(wire=job.averaging.wire)
    for key, value in job.averaging:
        if value != getattr(usual, key):
            raise ValueError(
                f"averaging.{key}: has no meaning in mode collaborative, which takes averaging.wire alone; leave it out"
            )
