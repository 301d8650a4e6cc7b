"""The rounds of one stage, in the thread that owns the sockets: contributions out, averages in, merges when committed.

Glue between RingReducer (moves the vectors), RoundMember (says when a round may be merged) and the stage machine (says
when it is). Decides nothing itself.
"""

from collections.abc import Callable, Sequence

from ravnest.runtime import messages as m
from ravnest.runtime.segments import Average, Contribution
from ravnest.runtime.setup import SegmentSetup
from ring_allreduce import RingFinished, RingReducer, RingSpec, RoundCommitted, RoundMember
from ring_allreduce.transport import Delivery, Endpoint, Lane


class RoundExchange:
    """All rings of one stage."""

    def __init__(self, endpoint: Endpoint, segments: Sequence[SegmentSetup], max_lag: int) -> None:
        self._endpoint = endpoint
        specs = [
            RingSpec(str(segment.ring), segment.members, segment.elements, segment.chunk_elements)
            for segment in segments
        ]
        self._reducer = RingReducer(endpoint, specs, max_rounds=max_lag)
        self._member = RoundMember([spec.name for spec in specs])
        self._averages: dict[int, dict[int, Average]] = {}
        self._saves: set[int] = set()
        self.on_ring_finished: Callable[[int, int], None] | None = None
        """Hears each (round, ring) whose average is here."""

    def contribute(self, round: int, contributions: Sequence[Contribution]) -> None:  # noqa: A002 - our word
        for part in contributions:
            self._reducer.contribute(round, str(part.ring), part.vector, part.weight, part.counters)

    def on_delivery(self, delivery: Delivery) -> bool:
        """Take a chunk; False when the delivery is none."""
        return self._reducer.on_delivery(delivery)

    def on_committed(self, message: m.RoundCommitted) -> list[int]:
        """The rounds that may be merged now."""
        if message.save:
            self._saves.add(message.round)
        return [merge.round for merge in self._member.handle(RoundCommitted(message.round), 0.0)]

    def pump(self) -> list[int]:
        """Send on, tell the driver of finished rings, and return the rounds that may be merged now."""
        self._reducer.pump()
        merges = []
        for result in self._reducer.finished():
            ring = int(result.ring)
            self._averages.setdefault(result.round, {})[ring] = Average(
                result.average, result.counters, result.total_weight
            )
            self._endpoint.send(m.DRIVER, Lane.PIPELINE, m.RingFinished(round=result.round, ring=ring))
            if self.on_ring_finished is not None:
                self.on_ring_finished(result.round, ring)
            merges += [merge.round for merge in self._member.handle(RingFinished(result.ring, result.round), 0.0)]
        return merges

    def take(self, round: int) -> tuple[dict[int, Average], bool]:  # noqa: A002 - our word
        """A round's averages by ring, forgotten here, and whether its state is to be saved."""
        save = round in self._saves
        self._saves.discard(round)
        return self._averages.pop(round, {}), save
