"""The averaging of one stage: what it contributes to each round, what a merge does to it, and what is saved of it.

What is averaged is the progress of each segment's trained parameters and, in a vector of their own, the running
statistics among its buffers, which are set to the average and moved by no outer optimizer. Of other buffers, whose mean
need not be one of them, all members take the values of the ring's first one: it alone counts in their ring. Integer
counters travel beside the progress and are set to the maximum. The arithmetic of bounded lag is ring_allreduce's
Progress; rings.py moves the vectors; the stage machine says when a merge is applied.

In: the stage's weights and module, and averages of its rings. Out: contributions, corrected weights, and the stage's
state for a checkpoint.
"""

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain

import torch
from torch import Tensor

from ravnest.checkpoints.manifest import optimizer_file, segment_file
from ravnest.checkpoints.tensor_stream import TensorForm
from ravnest.errors import InvalidInput
from ravnest.splitting import StageModule
from ravnest.stage.progress_handing import Part, ProgressHanding, added
from ravnest.stage.rings import RoundRings, SegmentAverage, SegmentContribution
from ravnest.stage.segment_giving import SegmentGiving
from ravnest.stage.segment_taking import given_outer, given_weight
from ravnest.stage.setup import SegmentSetup, StageSetup
from ravnest.stage.state_sending import StateFile, StateSending, StateSource
from ravnest.training.averaging import OUTER_PREFIX, keeping_progress
from ravnest.training.weights import VersionedWeights
from ring_allreduce import Progress
from ring_allreduce.transport import Delivery, Message


class StageRounds:
    """What rounds of averaging do to the live weights and buffers of one stage.

    `release` belongs to the thread that owns the endpoint. The other methods run in the computing thread, or while that
    is idle.
    """

    def __init__(
        self,
        setup: StageSetup,
        module: StageModule,
        weights: VersionedWeights,
        rings: RoundRings,
        samples: Callable[[], int] = lambda: 0,
    ) -> None:
        """`rings`: the rings of the setup's segments, which may have begun already. `samples`: returns how many were
        trained on since the last snapshot."""
        averaging = setup.job.averaging
        self.rings = rings
        self._me = setup.name
        self._weights = weights
        self._module = module
        self._averaging = averaging
        self._setup = setup
        self.sending = StateSending()
        """What of the stage's state is still to be sent for checkpoints."""
        self._outer = {ring: averaging.make_outer() for ring in self._segments}
        self._progress = {
            ring: Progress(weights.flat(segment.parameters), self._outer[ring], copy=False)
            for ring, segment in self._segments.items()
        }
        self._contributed: dict[int, Sequence[SegmentContribution]] = {}
        self._samples = samples
        self._behind: dict[int, int] = {}
        """By round that is not merged: the samples behind the snapshot for it."""
        self.still = threading.RLock()
        """Is held while progress changes, with the samples behind it, or is read as a whole."""
        self.giving = SegmentGiving(self)
        """What of the stage's state is on its way to stages that join."""
        self.rests_at: Callable[[], int | None] = lambda: None
        """Returns how many updates the stage has made, where it makes no more for now; None where it may go on."""
        self.handing = ProgressHanding(self)
        """What the stage hands on when its cluster leaves, and what it has taken of others."""
        self.contributed = 0
        """The last round that the stage has contributed to, as one that follows too."""
        self.merged = 0
        """The last round that is in the anchor, of those since the run's session began."""

    @property
    def _segments(self) -> Mapping[int, SegmentSetup]:
        return self.rings.segments

    # A round's way through the stage, in order.

    def snapshot(
        self,
        round: int,  # noqa: A002 - our word
        samples: int,
        only: Collection[int] | None = None,
    ) -> list[SegmentContribution]:
        """Take the progress since the last snapshot, and weigh it by the `samples` behind it as the job says.

        `only`: of these rings alone.
        """
        contributions = []
        learned = dict(self._module.named_buffers())
        with self.still:
            self._behind[round], self.contributed = samples, round
            for segment in (each for each in self._segments.values() if only is None or each.ring in only):
                live = self._weights.flat(segment.parameters)
                progress = self._progress[segment.ring].snapshot(round, live)
                buffers, taken = _flat(learned, segment.buffers), _flat(learned, segment.taken)
                counters = tuple(int(value) for value in self._counters(segment))
                weigh = partial(self._weight, segment)
                # Progress and the ring both only read p_r, so they share it, where nobody else's comes to it.
                vector, weight = added(progress, weigh(samples), self.handing.due(segment.ring, round), weigh)
                contributions.append(SegmentContribution(segment.ring, vector, buffers, weight, counters, taken))
            self._contributed[round] = contributions
        return contributions

    def _weight(self, segment: SegmentSetup, samples: int) -> float:
        return self._averaging.weight(samples) / segment.copies

    def unmerged(self, ring: int) -> tuple[int, list[Part]] | None:
        """The updates that this stage rests at, and its own progress of a ring that is in no merged round: what each
        pending round was given, and what was made since, which the next round would get. None while it may go on."""
        version = self.rests_at()
        if version is None or not self.still.acquire(blocking=False):
            return None
        try:
            progress, live = self._progress[ring], self._weights.flat(self._segments[ring].parameters)
            parts = [Part(number, self._behind[number], progress.given(number)) for number in progress.pending]
            return version, [*parts, Part(self.contributed + 1, self._samples(), live.detach() - progress.base)]
        finally:
            self.still.release()

    def merge(self, round: int, averages: Mapping[int, SegmentAverage]) -> None:  # noqa: A002 - our word
        """Move the anchors of the segments of which a snapshot was taken, and the live weights with them."""
        given = {part.ring: part.buffers for part in self._contributed[round]}
        with self.sending.changing("merge"), self.still:
            self.merged = round
            self._behind.pop(round, None)
            for ring in given:
                segment, average = self._segments[ring], averages[ring]
                with self._weights.correcting(segment.parameters) as add:
                    self._progress[segment.ring].merge_in_pieces(round, average.vector, add, average.total_weight)
                # When nobody has trained since the last round, nothing was learned that could be averaged.
                if average.total_weight > 0:
                    self._set_buffers(segment, average, given[segment.ring])

    def release(self, round: int) -> None:  # noqa: A002 - our word
        """The stage has merged a round, so nobody can ask for it any more: let go of its memory."""
        self._contributed.pop(round, None)
        self.rings.release(round)

    # What other stages ask of it.

    def take(self, delivery: Delivery) -> bool:
        """Take a delivery that is about what stages give each other. Returns whether it was."""
        return self.giving.take(delivery) or self.handing.take(delivery)

    def pieces(self) -> Iterable[tuple[str, Message, list[Tensor]]]:
        """What may be sent to other stages now, and what the driver is to hear of that."""
        return chain(self.giving.pieces(), self.handing.pieces())

    def forget(self, peers: Collection[str]) -> None:
        """These stages are out."""
        self.giving.forget(peers)
        self.handing.forget(peers)

    def turn_to_another_driver(self) -> None:
        """Another driver takes over: it asks anew for all that the one before had asked for."""
        self.sending.forget()
        self.handing.clear()

    # The stage's state.

    @property
    def memory_bytes(self) -> int:
        """What averaging holds: anchors, what a checkpoint still needs of older ones, and for each round on its way the
        contributions and as much for averages."""
        anchors = sum(progress.anchor.nbytes for progress in self._progress.values()) + self.sending.kept_bytes
        parts = [part for contributions in self._contributed.values() for part in contributions]
        anchors += self.handing.held_bytes
        return anchors + 2 * sum(part.vector.nbytes + part.buffers.nbytes + part.taken.nbytes for part in parts)

    def anchor(self, ring: int) -> Tensor:
        """The flat anchor of one segment: the same bytes at every member of its ring. Read it only."""
        return self._progress[ring].anchor

    def adopt_anchor(self) -> None:
        """Set the live weights to the anchor exactly. To be called where nothing is pending; rounding would part the
        two."""
        for segment in self._segments.values():
            self._weights.adopt(segment.parameters, self._progress[segment.ring].anchor)

    def state_files(self) -> list[StateFile]:
        """This stage's state for a checkpoint, to be read where it lies: see state_sending.py."""
        files = [
            StateFile(segment_file(segment.ring), list(self.kept(segment)))
            for segment in self._segments.values()
            if segment.keeper
        ]
        return [*files, StateFile(optimizer_file(self._setup.cluster, self._setup.index), list(self._optimizer()))]

    def kept(self, segment: SegmentSetup) -> Iterator[StateSource]:
        """What checkpoints have of a segment: anchor and buffers, by original name and shape."""
        buffers = dict(self._module.named_buffers())
        for name, part in self._by_name(segment, self._progress[segment.ring].anchor):
            # The anchor is float32. The weights of a model of wider floats are saved in its own form.
            wide = self._weights.dtype(name).itemsize > part.dtype.itemsize
            form = TensorForm(name, self._weights.dtype(name) if wide else part.dtype, tuple(part.shape))
            yield StateSource(form, partial(_itself, part), "merge")
        for name in (*segment.buffers, *segment.taken, *segment.counters, *segment.local):
            copy = buffers[name].to("cpu", copy=True)
            yield StateSource(TensorForm.of(name, copy), partial(_itself, copy))
        for name in segment.frozen:
            tensor = self._weights.frozen(name)
            yield StateSource(TensorForm.of(name, tensor), partial(_itself, tensor))

    def given(self, ring: int) -> list[StateSource]:
        """What a stage that joins is given of a segment: what checkpoints have of it, the constants of its part of the
        model, and the outer optimizer's state.

        Buffers are read while a forward may be changing them. They are statistics, which the next round averages.
        """
        segment = self._segments[ring]
        sources = [_renamed(source, given_weight(source.form.name)) for source in self.kept(segment)]
        buffers = dict(self._module.named_buffers())
        for name in segment.constants:
            copy = (buffers[name] if name in buffers else self._weights.frozen(name)).to("cpu", copy=True)
            sources.append(StateSource(TensorForm.of(given_weight(name), copy), partial(_itself, copy)))
        outer = self._outer[ring]
        for key, vector in ({} if outer is None else outer.state()).items():
            for name, part in self._by_name(segment, vector):
                form = TensorForm.of(given_outer(OUTER_PREFIX + key, name), part)
                sources.append(StateSource(form, partial(_itself, part), "merge"))
        return sources

    def _optimizer(self) -> Iterator[StateSource]:
        """What checkpoints have of the optimizers, by PARAMETER.KEY; all of a parameter together."""
        outer = self.outer_state()
        for name in self._weights.names:
            for key, tensor in self._weights.state_of(name).items():
                form = TensorForm.of(f"{name}.{key}", tensor)
                yield StateSource(form, partial(self._state_of, name, key), "update", name)
        for (name, key), part in outer.items():
            yield StateSource(TensorForm.of(f"{name}.{key}", part), partial(_itself, part), "merge")

    def _state_of(self, name: str, key: str) -> Tensor:
        return self._weights.state_of(name)[key]

    def outer_state(self) -> dict[tuple[str, str], Tensor]:
        """The outer optimizers' state, as (parameter, key) → tensor: the same at all members of a ring. Read it, or
        copy it, before the next merge."""
        return {
            (name, OUTER_PREFIX + key): part
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

    def _set_buffers(self, segment: SegmentSetup, average: SegmentAverage, given: Tensor) -> None:
        """Give the module new tensors, since graphs that were recorded with the old ones keep them.

        What was learned and counted since the snapshot, where buffers were as `given`, still counts.
        """
        old = dict(self._module.named_buffers())
        learned = keeping_progress(average.buffers, given, _flat(old, segment.buffers))
        agreed = torch.tensor(average.counters, dtype=torch.int64)
        # The first member of the ring may have been lost in this round: then all keep theirs, until the next.
        taken = segment.taken if average.taken.numel() and segment.members[0] != self._me else ()
        kinds = ((segment.buffers, learned), (taken, average.taken), (segment.counters, agreed))
        for names, numbers in kinds:
            parts = torch.split_with_sizes(numbers, [old[name].numel() for name in names]) if names else ()
            for name, part in zip(names, parts, strict=True):
                new = part.reshape(old[name].shape).to(old[name].device, old[name].dtype, copy=True)
                if old[name].dtype == torch.float64:  # what nobody changed keeps its bits, though it travels as float32
                    new = torch.where(old[name].float().double() == new, old[name], new)
                self._module.set_buffer(name, torch.maximum(new, old[name]) if name in segment.counters else new)


def _renamed(source: StateSource, name: str) -> StateSource:
    return StateSource(replace(source.form, name=name), source.read, source.changed_by)


def _itself(tensor: Tensor) -> Tensor:
    return tensor


def _flat(buffers: Mapping[str, Tensor], names: Sequence[str]) -> Tensor:
    parts = [buffers[name].flatten().float().cpu() for name in names]
    return torch.cat(parts) if parts else torch.empty(0)
