"""A stage's segments: what it contributes to each round, and what it does with the averages.

Decides what a ring's vector holds: the progress of the segment's trained parameters, then its learning buffers (set to
the average, not added), with integer counters beside it (set to the maximum). The arithmetic of bounded lag is
ring_allreduce.Progress; weights belong to VersionedWeights. Runs in the compute thread; knows no socket.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ravnest.runtime.setup import SegmentSetup
from ravnest.splitting import StageModule
from ravnest.training.weights import VersionedWeights
from ring_allreduce import Progress


@dataclass(frozen=True)
class Contribution:
    """What one ring gets from this stage for one round."""

    ring: int
    vector: Tensor
    weight: float
    counters: tuple[int, ...]


@dataclass(frozen=True)
class Average:
    """What one ring gave back."""

    vector: Tensor
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

    def __init__(self, segments: Sequence[SegmentSetup], module: StageModule, weights: VersionedWeights) -> None:
        self._segments = segments
        self._weights = weights
        self._module = module
        self._progress = {segment.ring: Progress(weights.flat(segment.parameters)) for segment in segments}

    def snapshot(self, round: int, samples: int) -> list[Contribution]:  # noqa: A002 - our word
        """The progress since the last snapshot, weighed by the `samples` behind it."""
        contributions = []
        learned = dict(self._module.named_buffers())
        for segment in self._segments:
            live = self._weights.flat(segment.parameters)
            progress = self._progress[segment.ring].snapshot(round, live)
            buffers = [learned[name].flatten().float() for name in segment.buffers]
            counters = tuple(int(value) for value in self._counters(segment))
            # Progress and the ring both only read p_r, so without buffers they share it.
            vector = torch.cat([progress, *buffers]) if buffers else progress
            contributions.append(Contribution(segment.ring, vector, float(samples), counters))
        return contributions

    def merge(self, round: int, averages: Mapping[int, Average]) -> None:  # noqa: A002 - our word
        """Move the anchors, and the live weights with them."""
        for segment in self._segments:
            average = averages[segment.ring]
            progress = self._progress[segment.ring]
            split = progress.anchor.numel()
            correction = progress.merge(round, average.vector[:split])
            self._weights.add_correction(segment.parameters, correction)
            # When nobody has trained since the last round, nothing was learned that could be averaged.
            if average.total_weight > 0:
                self._set_buffers(segment, average.vector[split:], average.counters)

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
            anchor = self._progress[segment.ring].anchor
            at = 0
            for name, shape in self._weights.shapes(segment.parameters).items():
                yield StatePiece("weight", name, "", anchor[at : at + shape.numel()].reshape(shape).clone())
                at += shape.numel()
            for name in (*segment.buffers, *segment.counters):
                yield StatePiece("weight", name, "", buffers[name].clone())
            for name in segment.frozen:
                yield StatePiece("weight", name, "", self._weights.frozen(name).clone())

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
                new = part.reshape(old[name].shape).to(old[name].dtype, copy=True)
                self._module.set_buffer(name, torch.maximum(new, old[name]) if name in segment.counters else new)
