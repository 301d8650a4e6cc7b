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
        self._buffers = dict(module.named_buffers())
        self._progress = {segment.ring: Progress(weights.flat(segment.parameters)) for segment in segments}

    def snapshot(self, round: int, samples: int) -> list[Contribution]:  # noqa: A002 - our word
        """The progress since the last snapshot, weighed by the `samples` behind it."""
        contributions = []
        for segment in self._segments:
            live = self._weights.flat(segment.parameters)
            progress = self._progress[segment.ring].snapshot(round, live)
            buffers = [self._buffers[name].flatten().float() for name in segment.buffers]
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
            self._set_buffers(segment, average.vector[split:])
            for name, values in zip(segment.counters, self._split_counters(segment, average.counters), strict=True):
                self._buffers[name].copy_(values)

    def adopt_anchor(self) -> None:
        """Set the live weights to the anchor exactly: nothing is pending, and rounding must not part them."""
        for segment in self._segments:
            self._weights.adopt(segment.parameters, self._progress[segment.ring].anchor)

    def kept(self) -> Iterator[StatePiece]:
        """Copies of what this stage keeps for checkpoints: anchor and buffers, by original name and shape."""
        for segment in self._segments:
            if not segment.keeper:
                continue
            anchor = self._progress[segment.ring].anchor
            at = 0
            for name, shape in self._weights.shapes(segment.parameters).items():
                yield StatePiece("weight", name, "", anchor[at : at + shape.numel()].reshape(shape).clone())
                at += shape.numel()
            for name in (*segment.buffers, *segment.counters):
                yield StatePiece("weight", name, "", self._buffers[name].clone())
            for name in segment.frozen:
                yield StatePiece("weight", name, "", self._weights.frozen(name).clone())

    def _counters(self, segment: SegmentSetup) -> Iterator[int]:
        for name in segment.counters:
            yield from self._buffers[name].flatten().tolist()

    def _set_buffers(self, segment: SegmentSetup, values: Tensor) -> None:
        at = 0
        for name in segment.buffers:
            buffer = self._buffers[name]
            buffer.copy_(values[at : at + buffer.numel()].reshape(buffer.shape))
            at += buffer.numel()

    def _split_counters(self, segment: SegmentSetup, values: Sequence[int]) -> Iterator[Tensor]:
        at = 0
        for name in segment.counters:
            buffer = self._buffers[name]
            part = values[at : at + buffer.numel()]
            at += buffer.numel()
            yield torch.tensor(part, dtype=buffer.dtype).reshape(buffer.shape)
