"""The averaging of one stage: what it contributes to each round, what its rings give back, and what it merges.

What is averaged is the progress of each segment's trained parameters and, in a vector of their own, its learning
buffers, which are set to the average and moved by no outer optimizer. Integer counters travel beside them and are set
to the maximum. The arithmetic of bounded lag is ring_allreduce's Progress; RingReducer moves the vectors; RoundMember
says when a round may be merged, and the stage machine when it is.

In: the stage's weights and module, commits from the driver, chunks from the rings. Out: chunks to the rings, reports of
finished rings to the driver, corrected weights, and the stage's state for a checkpoint.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ravnest.errors import InvalidInput
from ravnest.splitting import StageModule
from ravnest.stage import messages as m
from ravnest.stage.setup import SegmentSetup, StageSetup
from ravnest.training.averaging import OUTER_PREFIX
from ravnest.training.weights import VersionedWeights
from ring_allreduce import Progress, RingReducer, RingSpec
from ring_allreduce.ring import RingResult
from ring_allreduce.rounds import RingFinished, RoundCommitted, RoundMember
from ring_allreduce.transport import Delivery, Endpoint, Lane


@dataclass(frozen=True)
class SegmentContribution:
    """What one ring gets from this stage for one round: the progress, and the buffers as they are."""

    ring: int
    vector: Tensor
    buffers: Tensor
    weight: float
    counters: tuple[int, ...]


@dataclass(frozen=True)
class SegmentAverage:
    """What one ring gave back for one round."""

    vector: Tensor
    buffers: Tensor
    counters: tuple[int, ...]
    total_weight: float


@dataclass(frozen=True)
class StatePiece:
    """One tensor of a stage's state for a checkpoint. `key` is the optimizer's name for it."""

    part: Literal["weight", "optimizer"]
    name: str
    key: str
    tensor: Tensor


class StageRounds:
    """All rings of one stage, over its live weights and buffers.

    `contribute`, `on_delivery`, `on_committed`, `pump` and `release` belong to the thread that owns the endpoint, and
    `take` to whoever has the stage's lock. The other methods run in the computing thread, or while that is idle.
    """

    def __init__(self, setup: StageSetup, module: StageModule, weights: VersionedWeights, endpoint: Endpoint) -> None:
        """`endpoint`: sends the chunks of the setup's rings, and RingFinished messages to the driver."""
        averaging = setup.job.averaging
        self._endpoint = endpoint
        self._segments = {segment.ring: segment for segment in setup.segments}
        self._weights = weights
        self._module = module
        self._averaging = averaging
        self._outer = {ring: averaging.make_outer() for ring in self._segments}
        self._progress = {
            ring: Progress(weights.flat(segment.parameters), self._outer[ring])
            for ring, segment in self._segments.items()
        }
        self._segment_of = {spec.name: segment for segment in setup.segments for spec in _rings(segment)}
        specs = [spec for segment in setup.segments for spec in _rings(segment)]
        self._reducer = RingReducer(endpoint, specs, max_rounds=setup.job.max_lag)
        self._member = RoundMember(self._segment_of)
        self._results: dict[int, dict[str, RingResult]] = {}
        self._saves: set[int] = set()
        self._contributed: dict[int, int] = {}  # round → bytes
        self.on_ring_finished: Callable[[int, int], None] | None = None
        """Is called with each (round, ring) whose average is here."""

    # A round's way through the stage, in order.

    def snapshot(self, round: int, samples: int) -> list[SegmentContribution]:  # noqa: A002 - our word
        """Take the progress since the last snapshot, and weigh it by the `samples` behind it as the job says."""
        contributions = []
        learned = dict(self._module.named_buffers())
        for segment in self._segments.values():
            live = self._weights.flat(segment.parameters)
            progress = self._progress[segment.ring].snapshot(round, live)
            parts = [learned[name].flatten().float().cpu() for name in segment.buffers]
            buffers = torch.cat(parts) if parts else torch.empty(0)
            counters = tuple(int(value) for value in self._counters(segment))
            # Progress and the ring both only read p_r, so they share it.
            weight = self._averaging.weight(samples) / segment.copies
            contributions.append(SegmentContribution(segment.ring, progress, buffers, weight, counters))
        return contributions

    def contribute(self, round: int, contributions: Sequence[SegmentContribution]) -> None:  # noqa: A002 - our word
        """Give what `snapshot` returned to the rings."""
        self._contributed[round] = sum(part.vector.nbytes + part.buffers.nbytes for part in contributions)
        for part in contributions:
            segment = self._segments[part.ring]
            self._reducer.contribute(round, segment.progress.name, part.vector, part.weight, part.counters)
            if segment.averaged_buffers is not None:
                self._reducer.contribute(round, segment.averaged_buffers.name, part.buffers, part.weight)

    def on_delivery(self, delivery: Delivery) -> bool:
        """Take a delivery if it is a chunk of a ring. Returns whether it was one."""
        return self._reducer.on_delivery(delivery)

    def on_committed(self, message: m.RoundCommittedMessage) -> list[int]:
        """Take a commit. Returns the rounds that may be merged now."""
        if message.save:
            self._saves.add(message.round)
        return [merge.round for merge in self._member.handle(RoundCommitted(message.round), 0.0)]

    def pump(self) -> list[int]:
        """Send chunks, tell the driver of finished rings, and return the rounds that may be merged now."""
        self._reducer.pump()
        merges = []
        for result in self._reducer.finished():
            segment, arrived = self._segment_of[result.ring], self._results.setdefault(result.round, {})
            arrived[result.ring] = result
            if all(spec.name in arrived for spec in _rings(segment)):
                self._endpoint.send(
                    m.DRIVER, Lane.PIPELINE, m.RingFinishedMessage(round=result.round, ring=segment.ring)
                )
                if self.on_ring_finished is not None:
                    self.on_ring_finished(result.round, segment.ring)
            merges += [merge.round for merge in self._member.handle(RingFinished(result.ring, result.round), 0.0)]
        return merges

    def take(self, round: int) -> tuple[dict[int, SegmentAverage], bool]:  # noqa: A002 - our word
        """The averages of a round by ring, and whether the stage's state is to be saved. This call forgets both.

        The averages' memory is used again once `release` was called.
        """
        save = round in self._saves
        self._saves.discard(round)
        results = self._results.pop(round, {})
        return {ring: _average(results, segment) for ring, segment in self._segments.items() if results}, save

    def merge(self, round: int, averages: Mapping[int, SegmentAverage]) -> None:  # noqa: A002 - our word
        """Move the anchors, and the live weights with them."""
        for segment in self._segments.values():
            average = averages[segment.ring]
            correction = self._progress[segment.ring].merge(round, average.vector, average.total_weight)
            self._weights.add_correction(segment.parameters, correction)
            # When nobody has trained since the last round, nothing was learned that could be averaged.
            if average.total_weight > 0:
                self._set_buffers(segment, average.buffers, average.counters)

    def release(self, round: int) -> None:  # noqa: A002 - our word
        """The stage has merged a round, so nobody can ask for it any more: let go of its memory."""
        self._contributed.pop(round, None)
        self._reducer.commit(round)

    # The stage's state.

    @property
    def memory_bytes(self) -> int:
        """What averaging holds: anchors, and for each round on its way the contributions and as much for averages."""
        anchors = sum(progress.anchor.nbytes for progress in self._progress.values())
        return anchors + 2 * sum(self._contributed.values())

    @property
    def unmerged(self) -> list[tuple[str, int]]:
        """(ring, round) of the averages that are whole here and whose memory is not released yet."""
        return self._reducer.holding()

    def anchor(self, ring: int) -> Tensor:
        """The flat anchor of one segment: the same bytes at every member of its ring. Read it only."""
        return self._progress[ring].anchor

    def adopt_anchor(self) -> None:
        """Set the live weights to the anchor exactly. To be called where nothing is pending; rounding would part the
        two."""
        for segment in self._segments.values():
            self._weights.adopt(segment.parameters, self._progress[segment.ring].anchor)

    def saved(self) -> list[StatePiece]:
        """Copies of this stage's state for a checkpoint."""
        state = self.optimizer_state()
        return [*self.kept(), *(StatePiece("optimizer", name, key, tensor) for (name, key), tensor in state.items())]

    def optimizer_state(self) -> dict[tuple[str, str], Tensor]:
        """Copies of the optimizer state by (parameter name, the optimizer's key), with that of the outer optimizers."""
        return self._weights.optimizer_state() | self.outer_state()

    def kept(self) -> Iterator[StatePiece]:
        """Copies of what this stage keeps for checkpoints: anchor and buffers, by original name and shape."""
        buffers = dict(self._module.named_buffers())
        for segment in self._segments.values():
            if not segment.keeper:
                continue
            for name, part in self._by_name(segment, self._progress[segment.ring].anchor):
                yield StatePiece("weight", name, "", part.clone())
            for name in (*segment.buffers, *segment.counters):
                yield StatePiece("weight", name, "", buffers[name].to("cpu", copy=True))
            for name in segment.frozen:
                yield StatePiece("weight", name, "", self._weights.frozen(name).to("cpu", copy=True))

    def outer_state(self) -> dict[tuple[str, str], Tensor]:
        """Copies of the outer optimizers' state, as (parameter, key) → tensor: the same at all members of a ring."""
        return {
            (name, OUTER_PREFIX + key): part.clone()
            for segment in self._segments.values()
            if (outer := self._outer[segment.ring]) is not None
            for key, vector in outer.state().items()
            for name, part in self._by_name(segment, vector)
        }

    def load_outer_state(self, state: Mapping[tuple[str, str], Tensor]) -> None:
        """Go on from what `outer_state` gave; empty before a first round. Raises InvalidInput when it does not fit."""
        expected = {name for segment in self._segments.values() for name in segment.parameters}
        keys = {key for _, key in state}
        if state.keys() != {(name, key) for name in expected for key in keys}:
            raise InvalidInput(f"the outer optimizer's state {sorted(keys)} is not of each parameter of this stage")
        for segment in self._segments.values() if keys else ():
            outer = self._outer[segment.ring]
            if outer is None:
                raise InvalidInput("this job has no outer optimizer, but the state of one was given", key="averaging")
            vectors = {key: [state[name, key].flatten() for name in segment.parameters] for key in sorted(keys)}
            outer.load({key.removeprefix(OUTER_PREFIX): torch.cat(parts) for key, parts in vectors.items() if parts})

    def _by_name(self, segment: SegmentSetup, flat: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Views of a vector of the segment as parameters, by original name and shape."""
        at = 0
        for name, shape in self._weights.shapes(segment.parameters).items():
            yield name, flat[at : at + shape.numel()].reshape(shape)
            at += shape.numel()

    def _counters(self, segment: SegmentSetup) -> Iterator[int]:
        buffers = dict(self._module.named_buffers())
        for name in segment.counters:
            yield from buffers[name].flatten().tolist()

    def _set_buffers(self, segment: SegmentSetup, values: Tensor, counters: Sequence[int]) -> None:
        """Give the module new tensors, since graphs that were recorded with the old ones keep them.

        Counters never go back, because what was counted since the snapshot still counts.
        """
        old = dict(self._module.named_buffers())
        agreed = torch.tensor(counters, dtype=torch.int64)
        for names, numbers in ((segment.buffers, values), (segment.counters, agreed)):
            parts = torch.split_with_sizes(numbers, [old[name].numel() for name in names]) if names else ()
            for name, part in zip(names, parts, strict=True):
                new = part.reshape(old[name].shape).to(old[name].device, old[name].dtype, copy=True)
                self._module.set_buffer(name, torch.maximum(new, old[name]) if name in segment.counters else new)


def _rings(segment: SegmentSetup) -> list[RingSpec]:
    return [segment.progress] if segment.averaged_buffers is None else [segment.progress, segment.averaged_buffers]


def _average(results: Mapping[str, RingResult], segment: SegmentSetup) -> SegmentAverage:
    progress, learned = results[segment.progress.name], segment.averaged_buffers
    buffers = torch.empty(0) if learned is None else results[learned.name].average
    return SegmentAverage(progress.average, buffers, progress.counters, progress.total_weight)
