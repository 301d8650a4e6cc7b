"""What a stage keeps when its cluster is lost with another stage, while it waits for that one's successor.

In: a stage that has stopped and computes nothing any more. Out: its anchor as of the last round that is committed, its
buffers, and the state of its optimizers. It joins with them as any stage joins that had got them from donors.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from ravnest.stage import epoch_messages as em
from ravnest.stage.compute import StageCompute
from ravnest.stage.rounds import StageRounds
from ravnest.stage.segment_taking import TakenSegment, taken_segment
from ravnest.stage.setup import StageSetup
from ring_allreduce.transport import Delivery, Endpoint


@dataclass(frozen=True)
class KeptState:
    """The state of a stage that stands by."""

    segments: Mapping[int, TakenSegment]
    """By ring."""
    optimizer: Mapping[tuple[str, str], Tensor]
    """The optimizer's own state, by (parameter, key)."""
    left: Sequence[Delivery] = ()
    """What has arrived since the stage stopped, in order."""
    term: int = 0
    """That of the driver which the stage heard last."""


class Stopped(Protocol):
    """A stage that has stopped to stand by: one that trained, or was about to."""

    setup: StageSetup
    endpoint: Endpoint
    left: list[Delivery]
    term: int
    stands_by: em.StandBy | None

    @property
    def compute(self) -> StageCompute | None:
        """What computes there; None before it holds its weights."""
        ...

    @property
    def rounds(self) -> StageRounds | None:
        """Its averaging; None before it holds its weights."""
        ...


def kept_state(stage: Stopped) -> KeptState:
    """Return what the stage keeps. Rounds that are committed and that it has not merged are merged first."""
    rounds, compute = stage.rounds, stage.compute
    if rounds is None or compute is None:
        return KeptState({}, {}, stage.left, stage.term)
    while rounds.merged < rounds.rings.committed:
        number = rounds.merged + 1
        averages, _ = rounds.rings.take(number)
        rounds.merge(number, averages)
    segments = {
        ring: taken_segment(
            rounds.merged, {source.form.name: source.read().detach().to("cpu") for source in rounds.given(ring)}
        )
        for ring in rounds.rings.segments
    }
    return KeptState(segments, compute.weights.optimizer_state(), stage.left, stage.term)
