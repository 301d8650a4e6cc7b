"""The rounds of one stage, in the thread that owns the sockets: contributions out, averages in, merges when committed.

Glue between RingReducer (moves the vectors), RoundMember (says when a round may be merged) and the stage machine (says
when it is). Decides nothing itself.
"""

from collections.abc import Callable, Mapping, Sequence

import torch

from ravnest.stage import messages as m
from ravnest.stage.segments import Average, Contribution
from ravnest.stage.setup import SegmentSetup
from ring_allreduce import RingReducer, RingSpec
from ring_allreduce.ring import RingResult
from ring_allreduce.rounds import RingFinished, RoundCommitted, RoundMember
from ring_allreduce.transport import Delivery, Endpoint, Lane


class RoundExchange:
    """All rings of one stage."""

    def __init__(self, endpoint: Endpoint, segments: Sequence[SegmentSetup], max_lag: int) -> None:
        self._endpoint = endpoint
        self._segments = {segment.ring: segment for segment in segments}
        self._segment_of = {spec.name: segment for segment in segments for spec in _rings(segment)}
        specs = [spec for segment in segments for spec in _rings(segment)]
        self._reducer = RingReducer(endpoint, specs, max_rounds=max_lag)
        self._member = RoundMember(self._segment_of)
        self._results: dict[int, dict[str, RingResult]] = {}
        self._saves: set[int] = set()
        self._contributed: dict[int, int] = {}  # round → bytes
        self.on_ring_finished: Callable[[int, int], None] | None = None
        """Hears each (round, ring) whose average is here."""

    def contribute(self, round: int, contributions: Sequence[Contribution]) -> None:  # noqa: A002 - our word
        self._contributed[round] = sum(part.vector.nbytes + part.buffers.nbytes for part in contributions)
        for part in contributions:
            segment = self._segments[part.ring]
            self._reducer.contribute(round, segment.progress.name, part.vector, part.weight, part.counters)
            if segment.averaged_buffers is not None:
                self._reducer.contribute(round, segment.averaged_buffers.name, part.buffers, part.weight)

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
            segment, arrived = self._segment_of[result.ring], self._results.setdefault(result.round, {})
            arrived[result.ring] = result
            if all(spec.name in arrived for spec in _rings(segment)):
                self._endpoint.send(m.DRIVER, Lane.PIPELINE, m.RingFinished(round=result.round, ring=segment.ring))
                if self.on_ring_finished is not None:
                    self.on_ring_finished(result.round, segment.ring)
            merges += [merge.round for merge in self._member.handle(RingFinished(result.ring, result.round), 0.0)]
        return merges

    def take(self, round: int) -> tuple[dict[int, Average], bool]:  # noqa: A002 - our word
        """A round's averages by ring, forgotten here, and whether its state is to be saved.

        Their memory is used again once `merged` was called.
        """
        save = round in self._saves
        self._saves.discard(round)
        results = self._results.pop(round, {})
        return {ring: _average(results, segment) for ring, segment in self._segments.items() if results}, save

    def merged(self, round: int) -> None:  # noqa: A002 - our word
        """The stage has merged a round: nobody can ask for it any more."""
        self._contributed.pop(round, None)
        self._reducer.commit(round)

    @property
    def contributed_bytes(self) -> int:
        """Of all rounds that are not merged yet."""
        return sum(self._contributed.values())


def _rings(segment: SegmentSetup) -> list[RingSpec]:
    return [segment.progress] if segment.averaged_buffers is None else [segment.progress, segment.averaged_buffers]


def _average(results: Mapping[str, RingResult], segment: SegmentSetup) -> Average:
    progress, learned = results[segment.progress.name], segment.averaged_buffers
    buffers = torch.empty(0) if learned is None else results[learned.name].average
    return Average(progress.average, buffers, progress.counters, progress.total_weight)
