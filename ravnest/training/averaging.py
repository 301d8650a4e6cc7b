"""The `averaging` section of the job file: what a cluster's progress counts, what becomes of the mean, how it travels.

Decides which choices a job may make and what each means to ring_allreduce. Does not know when a round opens, nor who
is in a ring.
"""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BeforeValidator
from torch import Tensor

from ravnest.job_sections import FractionBelowOne, PositiveFloat, Section
from ravnest.training.precision import WireName, bytes_per_float32_byte, ring_wire
from ring_allreduce import Nesterov
from ring_allreduce.ring.wire_forms import Wire

OUTER_PREFIX = "outer_"
"""Of the outer optimizer's keys among a stage's optimizer state: torch's own optimizers use no such key."""


class NesterovConfig(Section):
    """DiLoCo's outer optimizer: see ring_allreduce/rounds/outer_optimizer.py."""

    lr: PositiveFloat = 0.7
    """What the anchor takes of each step."""

    momentum: FractionBelowOne = 0.9
    """What is kept of the earlier averages."""


class OuterConfig(Section):
    """An outer optimizer, by name."""

    nesterov: NesterovConfig


def _outer(value: object) -> object:
    if value == "none" or isinstance(value, OuterConfig) or (isinstance(value, Mapping) and set(value) == {"nesterov"}):
        return value
    raise ValueError("expected none or {nesterov: {lr: 0.7, momentum: 0.9}}")


class AveragingConfig(Section):
    """How the clusters' progress is averaged."""

    weighting: Literal["samples", "equal"] = "samples"
    """A cluster counts by the samples behind its progress, or as much as any other that has trained."""

    outer: Annotated[Literal["none"] | OuterConfig, BeforeValidator(_outer)] = "none"
    """What the anchor makes of the mean: none takes it as it is."""

    wire: WireName = "float32"
    """How progress travels; what a shorter form loses is fed back in the next round."""

    @property
    def ring_wire(self) -> Wire:
        """The wire in ring_allreduce's words."""
        return ring_wire(self.wire)

    @property
    def outer_name(self) -> str:
        """none or nesterov: what must not change over a resume, while its rates may."""
        return self.outer if isinstance(self.outer, str) else "nesterov"

    def weight(self, samples: int) -> float:
        """What progress made with so many samples counts. A cluster that has made none counts nothing."""
        return float(samples) if self.weighting == "samples" else float(samples > 0)

    def make_outer(self) -> Nesterov | None:
        """A new outer optimizer for one segment."""
        if isinstance(self.outer, str):
            return None
        return Nesterov(self.outer.nesterov.lr, self.outer.nesterov.momentum)

    @property
    def wire_bytes_per_parameter_byte(self) -> float:
        """How much less than the parameters themselves, which are taken for float32, a round moves."""
        return bytes_per_float32_byte(self.wire)

    def state_bytes_per_parameter_byte(self, max_lag: int) -> float:
        """What stays from round to round, as copies of the parameters: momentum; what has not been fed back yet, once
        as it was before the rounds on their way and once for each of these."""
        return float(self.outer != "none") + (0.0 if self.wire == "float32" else 1.0 + max_lag)


def split_outer(
    state: Mapping[tuple[str, str], Tensor],
) -> tuple[dict[tuple[str, str], Tensor], dict[tuple[str, str], Tensor]]:
    """A stage's optimizer state, (parameter, key) → tensor, as the optimizer's own part and the outer one's."""
    own = {name: tensor for name, tensor in state.items() if not name[1].startswith(OUTER_PREFIX)}
    outer = {name: tensor for name, tensor in state.items() if name[1].startswith(OUTER_PREFIX)}
    return own, outer
