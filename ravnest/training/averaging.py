"""The `averaging` section of the job file: how much a cluster counts, the outer optimizer, and the form on the wire.

In: the section. Out: what each choice means to ring_allreduce, and what it costs in memory and bytes. When a round
opens, and which stages are in a ring, is decided elsewhere.
"""

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Annotated, Literal, Self

import torch
from pydantic import BeforeValidator, Field, model_validator
from torch import Tensor

from ravnest.errors import InvalidInput
from ravnest.job_sections import FractionBelowOne, PositiveFloat, Section
from ravnest.training.precision import RoundWireName, bytes_per_float32_byte, ring_wire
from ring_allreduce.ring import RobustRule, Wire
from ring_allreduce.rounds import Nesterov

OUTER_PREFIX = "outer_"
"""The prefix of the outer optimizer's keys in a stage's optimizer state. torch's optimizers use no such key."""


BufferRule = Literal["average", "first", "local"]
"""What a round does with a buffer: all members get the average, or the values of the ring's first member, or each keeps
its own."""

_STATISTICS = ("running_", "moving_")
"""How the names of buffers begin that are running means of what has been seen, as torch's norms call them. The mean of
two such buffers is one again. Of other buffers it may not be: the mean of two vectors of norm 1, such as those of
spectral_norm, is shorter."""


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

    wire: RoundWireName = "float32"
    """The form in which progress travels. What a shorter form loses is fed back in the next round."""

    robust: Literal["none"] | RobustRule = "none"
    """The rule by which contributions become the average, where some members may lie: none is the weighted mean."""

    hierarchical: Annotated[bool, Field(strict=True)] = False
    """Whether long rings become rings of rings, over near members first, where that is faster."""

    buffers: dict[str, BufferRule] = Field(default_factory=dict)
    """Patterns of buffers (`codebook.*`) and what a round does with them; the first that matches counts. Without one,
    running statistics of norms are averaged, and of any other buffer all get the values of one cluster."""

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if self.hierarchical and self.robust != "none":
            raise ValueError("hierarchical: a robust average sees each member's part, and a sum over a group hides it")
        if self.wire == "sparse" and self.robust == "trimmed_mean":
            raise ValueError(
                "wire: sparse sends of most numbers nothing, so that trimmed_mean would leave out what few have sent:"
                " use centred_clipping or another form"
            )
        return self

    def rule_of(self, buffer: str) -> BufferRule:
        """What a round does with the floating-point buffer of this name."""
        for pattern, rule in self.buffers.items():
            if fnmatchcase(buffer, pattern):
                return rule
        return "average" if buffer.rpartition(".")[2].startswith(_STATISTICS) else "first"

    def keeps_own(self, counter: str) -> bool:
        """Whether each member keeps its own value of the integer buffer of this name, where others get the largest."""
        return next((rule for p, rule in self.buffers.items() if fnmatchcase(counter, p)), None) == "local"

    def check_buffers(self, floating: Iterable[str], integers: Iterable[str]) -> None:
        """Raises InvalidInput at a pattern that none of the model's saved buffers has, or that asks of an integer one
        what is not possible."""
        names, counters = tuple(floating), tuple(integers)
        for pattern, rule in self.buffers.items():
            key = f"averaging.buffers.{pattern}"
            if not any(fnmatchcase(name, pattern) for name in (*names, *counters)):
                raise InvalidInput("matches no buffer that the model saves", key=key)
            whole = next((name for name in counters if fnmatchcase(name, pattern)), None)
            if whole is not None and rule != "local":
                raise InvalidInput(
                    f"{whole!r} holds integers: a round takes their maximum, or leaves them local", key=key
                )

    @property
    def ring_wire(self) -> Wire:
        """The name that ring_allreduce has for the form."""
        return ring_wire(self.wire)

    @property
    def rule(self) -> RobustRule | None:
        """The robust rule that ring_allreduce averages by; None for the weighted mean."""
        return None if self.robust == "none" else self.robust

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


def keeping_progress(average: Tensor, given: Tensor, now: Tensor) -> Tensor:
    """Running statistics after a round: the average, and what this member has learned since it gave its own.

    `given` is what the member gave to the round and `now` what it has at the merge. Each element of the result lies
    between the average and `now`, so that a variance stays one. Where nothing was learned since, it is the average.
    """
    return torch.clamp(average + (now - given), torch.minimum(average, now), torch.maximum(average, now))


def split_outer(
    state: Mapping[tuple[str, str], Tensor],
) -> tuple[dict[tuple[str, str], Tensor], dict[tuple[str, str], Tensor]]:
    """Divide a stage's optimizer state, (parameter, key) → tensor, into the optimizer's own and the outer one's."""
    own = {name: tensor for name, tensor in state.items() if not name[1].startswith(OUTER_PREFIX)}
    outer = {name: tensor for name, tensor in state.items() if name[1].startswith(OUTER_PREFIX)}
    return own, outer
