"""The rounds of a stage that does not train yet: it gives nothing to them, takes every average, and so keeps up.

In: rounds that opened, averages of its rings, and at some moment the anchor of one of the rounds. Out: contributions
without weight, and an anchor that is the same, bit for bit, as that of all other members:

    anchor of round r  +  the averages of the rounds after r, in order  =  anchor of today

Averages that come before the anchor are kept. A copy of each lies in memory until then, where a stage that trains has
its gradients and its optimizer's state, which this one has not yet.
"""

from collections.abc import Mapping, Sequence
from math import prod

import torch

from ravnest.errors import RunFailed
from ravnest.stage.rings import RoundRings, SegmentAverage, SegmentContribution
from ravnest.stage.rounds import StageRounds
from ravnest.stage.setup import SegmentSetup, StageSetup

MOST_KEPT = 8
"""A stage keeps averages of so many rounds at most, or LEAST_KEPT_BYTES if that is more. Then it gives up: rounds pass
faster than it is sent an anchor. A stage that trains has its gradients, its optimizer's state and activations there."""

LEAST_KEPT_BYTES = 256 << 20

_LEAST_COUNTER = -(1 << 63)
"""Counters are set to the maximum: this one changes nothing."""


class RoundFollower:
    """Follows the rounds of one stage. It belongs to the thread that owns the endpoint."""

    def __init__(self, setup: StageSetup, rings: RoundRings) -> None:
        self._rings = rings
        self._max_lag = setup.job.max_lag
        sizes = {spec.name: prod(spec.shape) for spec in setup.program.buffers}
        self._nothing = [_nothing(segment, sizes) for segment in setup.segments]
        self._up_to = 0
        self._given: set[int] = set()
        self._kept: dict[int, Mapping[int, SegmentAverage]] = {}
        of_round = sum(4 * spec.elements for segment in setup.segments for spec in segment.rings)
        self._most_kept = max(MOST_KEPT, LEAST_KEPT_BYTES // max(1, of_round))
        self._rounds: StageRounds | None = None
        self.merged = 0
        """The last round that is in the anchor, or in the averages that are kept for it."""

    @property
    def contributed(self) -> int:
        """The last round up to which this stage has taken part in every round that is its own."""
        number = max(self.merged, (self._rings.first_round or 1) - 1)
        while number + 1 in self._given:
            number += 1
        return number

    def follow(self, up_to: int) -> None:
        """The rounds up to `up_to` are open: take part in each as soon as the lag permits."""
        self._up_to = max(self._up_to, up_to)
        self.contribute()

    def contribute(self) -> None:
        """Take part in the open rounds. To be called again when an epoch has begun, which may make rounds its own."""
        first = self._rings.first_round
        if first is None:
            return
        for number in range(max(first, self._rings.committed + 1), self._up_to + 1):
            if number in self._given or number - self._max_lag > self._rings.committed:
                continue
            self._given.add(number)
            if self._rounds is None:
                self._rings.contribute(number, self._nothing)
            else:
                self._rings.contribute(number, self._rounds.snapshot(number, samples=0))

    def merge(self, rounds: Sequence[int]) -> None:
        """These rounds are committed, in order, and their averages are here. Raises RunFailed for one too many."""
        for number in rounds:
            averages, save = self._rings.take(number)
            if self._rounds is not None:
                if number != self.merged + 1:
                    raise RunFailed(f"the average of round {self.merged + 1} is missing, and that of {number} is here")
                self._rounds.merge(number, averages)
                self._rounds.release(number)
                if save:  # it is told to train already, in a message that has come with this round's commit
                    self._rounds.sending.begin(number, self._rounds.state_files())
            else:
                if len(self._kept) == self._most_kept:
                    raise RunFailed(f"{self._most_kept} rounds have passed, and the anchor of none is here")
                self._kept[number] = {ring: _copied(average) for ring, average in averages.items()}
                self._rings.release(number)
            self._given.discard(number)
            self.merged = number
        self.contribute()

    @property
    def reached(self) -> int:
        """The last round whose average is here, or that is before this stage's first."""
        return max(self.merged, (self._rings.first_round or 1) - 1)

    @property
    def newest(self) -> int:
        """The newest round that another member can have merged: it is not committed before this stage has its part."""
        return max(self.reached, self.contributed)

    def adopt(self, rounds: StageRounds, anchor_of: int | Mapping[int, int]) -> None:
        """`rounds` has the weights and the outer optimizers of the anchor of this round: bring it to today's.

        `anchor_of`: the round, or that of each ring. Raises RunFailed where an average between the two is missing.
        """
        of = dict.fromkeys(self._rings.segments, anchor_of) if isinstance(anchor_of, int) else anchor_of
        first, last = min(of.values(), default=0), max(of.values(), default=0)
        kept = [number for number in sorted(self._kept) if number > first]
        if kept != list(range(first + 1, first + 1 + len(kept))) or last > max(first + len(kept), self.reached):
            raise RunFailed(f"the anchor of round {first} cannot be brought up to date with the rounds {kept}")
        for number in kept:
            behind = [ring for ring in of if of[ring] < number]
            rounds.snapshot(number, samples=0, only=behind)
            rounds.merge(number, self._kept[number])
            rounds.release(number)
        rounds.adopt_anchor()
        self._kept.clear()
        self.merged = rounds.merged = max(self.merged, last)
        for number in sorted(number for number in self._given if number > self.merged):
            rounds.snapshot(number, samples=0)
        self._rounds = rounds


def _nothing(segment: SegmentSetup, sizes: Mapping[str, int]) -> SegmentContribution:
    """What a stage gives to a round of a segment while it has nothing to give."""
    return SegmentContribution(
        segment.ring,
        torch.zeros(segment.progress.elements),
        torch.zeros(segment.averaged_buffers.elements if segment.averaged_buffers is not None else 0),
        0.0,
        (_LEAST_COUNTER,) * sum(sizes[name] for name in segment.counters),
        torch.zeros(segment.taken_buffers.elements if segment.taken_buffers is not None else 0),
        follows=True,
    )


def _copied(average: SegmentAverage) -> SegmentAverage:
    """A copy whose memory is nobody else's."""
    return SegmentAverage(
        average.vector.clone(), average.buffers.clone(), average.counters, average.total_weight, average.taken.clone()
    )
