"""The rounds of one stage, in the thread that owns the sockets: contributions out, averages in, merges when committed.

Glue between RingReducer (moves the vectors), RoundMember (says when a round may be merged) and the stage machine (says
when it is). Decides only that a segment's buffers have a ring of their own: they travel as they are, whatever the wire
of the progress, since a variance that was rounded beside larger numbers may come out below zero.
"""

from collections.abc import Callable, Mapping, Sequence

import torch

from ravnest.runtime import messages as m
from ravnest.runtime.segments import Average, Contribution
from ravnest.runtime.setup import SegmentSetup
from ring_allreduce import RingFinished, RingReducer, RingResult, RingSpec, RoundCommitted, RoundMember
from ring_allreduce.transport import Delivery, Endpoint, Lane


class RoundExchange:
    """All rings of one stage."""

    def __init__(self, endpoint: Endpoint, segments: Sequence[SegmentSetup], max_lag: int) -> None:
        self._endpoint = endpoint
        specs = {segment.ring: _specs(segment) for segment in segments}
        self._rings = {spec.name: ring for ring, several in specs.items() for spec in several}
        self._reducer = RingReducer(endpoint, [s for several in specs.values() for s in several], max_rounds=max_lag)
        self._member = RoundMember(self._rings)
        self._results: dict[int, dict[str, RingResult]] = {}
        self._saves: set[int] = set()
        self.on_ring_finished: Callable[[int, int], None] | None = None
        """Hears each (round, ring) whose average is here."""

    def contribute(self, round: int, contributions: Sequence[Contribution]) -> None:  # noqa: A002 - our word
        for part in contributions:
            self._reducer.contribute(round, _progress_of(part.ring), part.vector, part.weight, part.counters)
            if _buffers_of(part.ring) in self._rings:
                self._reducer.contribute(round, _buffers_of(part.ring), part.buffers, part.weight)

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
            ring, arrived = self._rings[result.ring], self._results.setdefault(result.round, {})
            arrived[result.ring] = result
            if all(name in arrived for name, its in self._rings.items() if its == ring):
                self._endpoint.send(m.DRIVER, Lane.PIPELINE, m.RingFinished(round=result.round, ring=ring))
                if self.on_ring_finished is not None:
                    self.on_ring_finished(result.round, ring)
            merges += [merge.round for merge in self._member.handle(RingFinished(result.ring, result.round), 0.0)]
        return merges

    def take(self, round: int) -> tuple[dict[int, Average], bool]:  # noqa: A002 - our word
        """A round's averages by ring, forgotten here, and whether its state is to be saved.

        Their memory is used again once `merged` was called.
        """
        save = round in self._saves
        self._saves.discard(round)
        results = self._results.pop(round, {})
        return {ring: _average(results, ring) for ring in {self._rings[name] for name in results}}, save

    def merged(self, round: int) -> None:  # noqa: A002 - our word
        """The stage has merged a round: nobody can ask for it any more."""
        self._reducer.commit(round)


def _progress_of(ring: int) -> str:
    return str(ring)


def _buffers_of(ring: int) -> str:
    return f"{ring}.buffers"


def _specs(segment: SegmentSetup) -> list[RingSpec]:
    """The rings of one segment: its progress, and its buffers where it has any."""
    progress = RingSpec(_progress_of(segment.ring), segment.members, segment.elements, segment.chunk_elements)
    buffers = RingSpec(_buffers_of(segment.ring), segment.members, segment.buffer_elements, segment.chunk_elements)
    return [progress, buffers] if segment.buffers else [progress]


def _average(results: Mapping[str, RingResult], ring: int) -> Average:
    progress, buffers = results[_progress_of(ring)], results.get(_buffers_of(ring))
    values = torch.empty(0) if buffers is None else buffers.average
    return Average(progress.average, values, progress.counters, progress.total_weight)
