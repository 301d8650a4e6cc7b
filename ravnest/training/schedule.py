"""The schedule of the learning rate over the updates that a cluster has made.

In: the `optimizer.schedule` section and the cluster's own count of updates. Out: one number for each update. So no
stage has to ask another, and a resumed run goes on where it stood.
"""

import math
from typing import Literal, Self

from pydantic import model_validator

from ravnest.errors import InvalidInput
from ravnest.job_sections import Fraction, NonNegativeInt, Section

DEFAULT_FINAL_LR_RATIO = 0.1
"""It is not zero, since a cluster that is faster than planned makes updates after its expected last one."""


class ScheduleConfig(Section):
    """The `optimizer.schedule` section of the job file."""

    name: Literal["constant", "linear", "cosine"] = "constant"
    """The shape of the rate after warm-up: constant, falling linearly, or falling along half a cosine."""

    warmup_updates: NonNegativeInt = 0
    """The number of updates over which the rate first rises in equal steps to `lr`."""

    final_lr_ratio: Fraction | None = None
    """The rate at the cluster's expected last update, as a fraction of `lr` (linear and cosine only; default 0.1)."""

    @model_validator(mode="after")
    def _constant_has_no_end(self) -> Self:
        if self.name == "constant" and self.final_lr_ratio is not None:
            raise ValueError("final_lr_ratio has no meaning for a constant schedule: use linear or cosine")
        return self


def expected_updates(cluster_samples: float, micro_batch: int, update_every: int) -> int:
    """How many whole updates a cluster makes of `cluster_samples` samples; at least one."""
    return max(1, int(cluster_samples // (micro_batch * update_every)))


def lr_ratio(schedule: ScheduleConfig, update: int, total_updates: int | None) -> float:
    """The fraction of the peak rate for update number `update` (from 0) of `total_updates` expected ones.

    Past the expected end the ratio stays at its final value. `total_updates` is None when the run has no known end.
    Raises InvalidInput when a decaying schedule has no end to decay to, or ends inside its warm-up.
    """
    warmup = schedule.warmup_updates
    if schedule.name != "constant":
        if total_updates is None:
            raise InvalidInput(
                f"a {schedule.name} schedule needs a known end: stop by samples or epochs, or use constant",
                key="optimizer.schedule.name",
            )
        if warmup >= total_updates:
            raise InvalidInput(
                f"{warmup} warm-up updates leave none to decay over: a cluster is expected to make {total_updates}",
                key="optimizer.schedule.warmup_updates",
            )
    if update < warmup:
        return (update + 1) / warmup
    if schedule.name == "constant" or total_updates is None:
        return 1.0
    final = DEFAULT_FINAL_LR_RATIO if schedule.final_lr_ratio is None else schedule.final_lr_ratio
    done = min(1.0, (update - warmup) / (total_updates - warmup))
    falling = 1.0 - done if schedule.name == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))
    return final + (1.0 - final) * falling


def learning_rate(peak_lr: float, schedule: ScheduleConfig, update: int, total_updates: int | None) -> float:
    """The learning rate of update number `update` (from 0). Raises InvalidInput as lr_ratio does."""
    return peak_lr * lr_ratio(schedule, update, total_updates)
