"""How the learning rate follows the updates a cluster has made.

Decides one number per update from the cluster's own count, so that no stage asks another and a resumed run goes on
where it stood. Does not know what the optimizer does with it, nor how fast any cluster really is.
"""

import math
from typing import Literal, Self

from pydantic import model_validator

from ravnest.errors import InvalidInput
from ravnest.job_sections import Fraction, NonNegativeInt, Section

DEFAULT_FINAL_LR_RATIO = 0.1
"""Not zero: a cluster that turns out faster than planned makes updates past its expected last one."""


class ScheduleConfig(Section):
    """The `optimizer.schedule` section of the job file."""

    name: Literal["constant", "linear", "cosine"] = "constant"
    """Shape of the rate after warm-up: level, straight down, or half a cosine down."""

    warmup_updates: NonNegativeInt = 0
    """Updates over which the rate first rises in equal steps to `lr`."""

    final_lr_ratio: Fraction | None = None
    """Rate at the cluster's expected last update, as a fraction of `lr` (linear and cosine only; default 0.1)."""

    @model_validator(mode="after")
    def _constant_has_no_end(self) -> Self:
        if self.name == "constant" and self.final_lr_ratio is not None:
            raise ValueError("final_lr_ratio has no meaning for a constant schedule: use linear or cosine")
        return self


def expected_updates(cluster_samples: float, micro_batch: int, update_every: int) -> int:
    """Whole updates that a cluster makes of `cluster_samples` samples; at least one."""
    return max(1, int(cluster_samples // (micro_batch * update_every)))


def lr_ratio(schedule: ScheduleConfig, update: int, total_updates: int | None) -> float:
    """Fraction of the peak rate for the update numbered `update` (from 0), of `total_updates` expected ones.

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
    """Learning rate of the update numbered `update` (from 0). Errors as in `lr_ratio`."""
    return peak_lr * lr_ratio(schedule, update, total_updates)
