"""A stage's segments: what it contributes to each round, and what it does with the averages.

Decides what is averaged: the progress of the segment's trained parameters and, in a vector of their own, its learning
buffers (set to the average, not added; no outer optimizer moves them), with integer counters beside it (set to the
maximum). The arithmetic of bounded lag is ring_allreduce.Progress; weights belong to VersionedWeights. Runs in the
compute thread; knows no socket.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ravnest.errors import InvalidInput
from ravnest.splitting import StageModule
from ravnest.stage.setup import SegmentSetup
from ravnest.training.averaging import OUTER_PREFIX, AveragingConfig
from ravnest.training.weights import VersionedWeights
from ring_allreduce import Progress


@dataclass(frozen=True)
class Contribution:
    """What one ring gets from this stage for one round: the progress, and the buffers as they are."""

    ring: int
    vector: Tensor
    buffers: Tensor
    weight: float
    counters: tuple[int, ...]


@dataclass(frozen=True)
class Average:
    """What one ring gave back."""

    vector: Tensor
    buffers: Tensor
    counters: tuple[int, ...]
    total_weight: float


@dataclass(frozen=True)
class StatePiece:
    """One tensor of a stage's state for a checkpoint; `key` is the optimizer's name for it."""

    part: Literal["weight", "optimizer"]
    name: str
    key: str
    tensor: Tensor


class StageSegments:
    """All segments of one stage, over the stage's live weights and buffers."""

    def __init__(
        self,
        segments: Sequence[SegmentSetup],
        module: StageModule,
        weights: VersionedWeights,
        averaging: AveragingConfig,
    ) -> None:
        self._segments = segments
        self._weights = weights
        self._module = module
        self._averaging = averaging
        self._outer = {segment.ring: averaging.make_outer() for segment in segments}
        self._progress = {
            segment.ring: Progress(weights.flat(segment.parameters), self._outer[segment.ring]) for segment in segments
        }

    def snapshot(self, round: int, samples: int) -> list[Contribution]:  # noqa: A002 - our word
        """The progress since the last snapshot, weighed by the `samples` behind it as the job says."""
        contributions = []
        learned = dict(self._module.named_buffers())
        for segment in self._segments:
            live = self._weights.flat(segment.parameters)
            progress = self._progress[segment.ring].snapshot(round, live)
            parts = [learned[name].flatten().float().cpu() for name in segment.buffers]
            buffers = torch.cat(parts) if parts else torch.empty(0)
            counters = tuple(int(value) for value in self._counters(segment))
            # Progress and the ring both only read p_r, so they share it.
            weight = self._averaging.weight(samples) / segment.copies
            contributions.append(Contribution(segment.ring, progress, buffers, weight, counters))
        return contributions

    def merge(self, round: int, averages: Mapping[int, Average]) -> None:  # noqa: A002 - our word
        """Move the anchors, and the live weights with them."""
        for segment in self._segments:
            average = averages[segment.ring]
            correction = self._progress[segment.ring].merge(round, average.vector, average.total_weight)
            self._weights.add_correction(segment.parameters, correction)
            # When nobody has trained since the last round, nothing was learned that could be averaged.
            if average.total_weight > 0:
                self._set_buffers(segment, average.buffers, average.counters)

    def anchor(self, ring: int) -> Tensor:
        """The flat anchor of one segment: the same bytes at every member of its ring. Read it only."""
        return self._progress[ring].anchor

    def adopt_anchor(self) -> None:
        """Set the live weights to the anchor exactly: nothing is pending, and rounding must not part them."""
        for segment in self._segments:
            self._weights.adopt(segment.parameters, self._progress[segment.ring].anchor)

    def kept(self) -> Iterator[StatePiece]:
        """Copies of what this stage keeps for checkpoints: anchor and buffers, by original name and shape."""
        buffers = dict(self._module.named_buffers())
        for segment in self._segments:
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
            for segment in self._segments
            if (outer := self._outer[segment.ring]) is not None
            for key, vector in outer.state().items()
            for name, part in self._by_name(segment, vector)
        }

    def load_outer_state(self, state: Mapping[tuple[str, str], Tensor]) -> None:
        """Go on from what `outer_state` gave; empty before a first round. Raises InvalidInput when it does not fit."""
        expected = {name for segment in self._segments for name in segment.parameters}
        keys = {key for _, key in state}
        if state.keys() != {(name, key) for name in expected for key in keys}:
            raise InvalidInput(f"the outer optimizer's state {sorted(keys)} is not of each parameter of this stage")
        for segment in self._segments if keys else ():
            outer = self._outer[segment.ring]
            if outer is None:
                raise InvalidInput("this job has no outer optimizer, but the state of one was given", key="averaging")
            vectors = {key: [state[name, key].flatten() for name in segment.parameters] for key in sorted(keys)}
            outer.load({key.removeprefix(OUTER_PREFIX): torch.cat(parts) for key, parts in vectors.items() if parts})

    def _by_name(self, segment: SegmentSetup, flat: Tensor) -> Iterator[tuple[str, Tensor]]:
        """A vector of the segment as parameters, by original name and shape. Views."""
        at = 0
        for name, shape in self._weights.shapes(segment.parameters).items():
            yield name, flat[at : at + shape.numel()].reshape(shape)
            at += shape.numel()

    def _counters(self, segment: SegmentSetup) -> Iterator[int]:
        buffers = dict(self._module.named_buffers())
        for name in segment.counters:
            yield from buffers[name].flatten().tolist()

    def _set_buffers(self, segment: SegmentSetup, values: Tensor, counters: Sequence[int]) -> None:
        """Give the module new tensors: graphs that were recorded with the old ones keep them.

        Counters never go back: what was counted since the snapshot still counts.
        """
        old = dict(self._module.named_buffers())
        agreed = torch.tensor(counters, dtype=torch.int64)
        for names, numbers in ((segment.buffers, values), (segment.counters, agreed)):
            parts = torch.split_with_sizes(numbers, [old[name].numel() for name in names]) if names else ()
            for name, part in zip(names, parts, strict=True):
                new = part.reshape(old[name].shape).to(old[name].device, old[name].dtype, copy=True)
                self._module.set_buffer(name, torch.maximum(new, old[name]) if name in segment.counters else new)
