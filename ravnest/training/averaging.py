"""The `averaging` section of the job file: how much a cluster counts, the outer optimizer, and the form on the wire.

In: the section. Out: what each choice means to ring_allreduce, and what it costs in memory and bytes. When a round
opens, and which stages are in a ring, is decided elsewhere.
"""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BeforeValidator
from torch import Tensor

from ravnest.job_sections import FractionBelowOne, PositiveFloat, Section
from ravnest.training.precision import WireName, bytes_per_float32_byte, ring_wire
from ring_allreduce.ring import Wire
from ring_allreduce.rounds import Nesterov

OUTER_PREFIX = "outer_"
"""The prefix of the outer optimizer's keys in a stage's optimizer state. torch's optimizers use no such key."""


class NesterovConfig(Section):
    """Nesterov momentum on the averages (DiLoCo): see ring_allreduce/rounds/outer_optimizer.py."""

    lr: PositiveFloat = 0.7
    """The part of each step that the anchor takes."""

    momentum: FractionBelowOne = 0.9
    """The part of the earlier averages that is kept."""


class OuterConfig(Section):
    """An outer optimizer, under its name."""

    nesterov: NesterovConfig


def _outer(value: object) -> object:
    if value == "none" or isinstance(value, OuterConfig) or (isinstance(value, Mapping) and set(value) == {"nesterov"}):
        return value
    raise ValueError("expected none or {nesterov: {lr: 0.7, momentum: 0.9}}")


class AveragingConfig(Section):
    """The `averaging` section: how the clusters' progress is averaged."""

    weighting: Literal["samples", "equal"] = "samples"
    """Whether a cluster counts by the samples behind its progress, or as much as any other that has trained."""

    outer: Annotated[Literal["none"] | OuterConfig, BeforeValidator(_outer)] = "none"
    """How the mean changes the anchor: none adds it as it is."""

    wire: WireName = "float32"
    """The form in which progress travels. What a shorter form loses is fed back in the next round."""

    @property
    def ring_wire(self) -> Wire:
        """The name that ring_allreduce has for the form."""
        return ring_wire(self.wire)

    @property
    def outer_name(self) -> str:
        """none or nesterov. A resumed run must have the same one, while its rates may change."""
        return self.outer if isinstance(self.outer, str) else "nesterov"

    def weight(self, samples: int) -> float:
        """The weight in the mean of progress made with so many samples. A cluster that has made none counts nothing."""
        return float(samples) if self.weighting == "samples" else float(samples > 0)

    def make_outer(self) -> Nesterov | None:
        """A new outer optimizer for one segment; None if the job has none."""
        if isinstance(self.outer, str):
            return None
        return Nesterov(self.outer.nesterov.lr, self.outer.nesterov.momentum)

    @property
    def wire_bytes_per_parameter_byte(self) -> float:
        """How many bytes a round moves for each byte of parameters, which are taken for float32."""
        return bytes_per_float32_byte(self.wire)

    def state_bytes_per_parameter_byte(self, max_lag: int) -> float:
        """Memory that stays from round to round, in copies of the parameters.

        That is one for momentum, and, with a shorter form, one for the loss that has not been fed back yet as it was
        before the rounds under way, and one for each of these (at most `max_lag`).
        """
        return float(self.outer != "none") + (0.0 if self.wire == "float32" else 1.0 + max_lag)


def split_outer(
    state: Mapping[tuple[str, str], Tensor],
) -> tuple[dict[tuple[str, str], Tensor], dict[tuple[str, str], Tensor]]:
    """Divide a stage's optimizer state, (parameter, key) → tensor, into the optimizer's own and the outer one's."""
    own = {name: tensor for name, tensor in state.items() if not name[1].startswith(OUTER_PREFIX)}
    outer = {name: tensor for name, tensor in state.items() if name[1].startswith(OUTER_PREFIX)}
    return own, outer
