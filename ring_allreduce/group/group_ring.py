"""A group's ring at one member: a reducer for what is averaged, and the chunks that came before it was called for.

In: calls of average(), and deliveries of the endpoint. Out: the averages that became whole. It decides nothing about
members and rounds, and has no connection to a rendezvous.
"""

from collections import Counter
from collections.abc import Collection

import torch

from ring_allreduce.errors import ContributionRefused, InvalidInput
from ring_allreduce.group.calls import Call
from ring_allreduce.group.control_messages import RING
from ring_allreduce.ring.executor import RingSpec
from ring_allreduce.ring.messages import Chunk, HandedOn
from ring_allreduce.ring.reducer import RingReducer
from ring_allreduce.ring.statistics import RingProgress, RingStatistics, added
from ring_allreduce.ring.uncommitted_rounds import RingResult
from ring_allreduce.ring.wire_forms import Wire, bytes_per_element
from ring_allreduce.transport import Delivery, Endpoint, Unacceptable
from ring_timing import chunk_elements_for, direct_is_faster

MOST_FORMS = 4
"""The number of forms of lists that are remembered where numbers travel compressed. Each takes two vectors of memory.
"""


def ring_spec(ring: str, members: tuple[str, ...], elements: int, dtype: torch.dtype, wire: Wire) -> RingSpec:
    """Return the ring that averages vectors of `elements` numbers among `members`. It is the same at all of them.

    Chunks, and whether everyone sends to everyone, are those of links that nobody measured (ring_timing/layout.py).
    """
    element_bytes = torch.empty((), dtype=dtype).element_size()
    direct = direct_is_faster(int(elements * bytes_per_element(wire, dtype)), len(members))
    chunk_elements = chunk_elements_for(None, element_bytes)
    return RingSpec(ring, members, elements, chunk_elements, dtype, wire, direct=direct)


LEAST_EARLY_BYTES = 256 << 20
"""This much of a round may always arrive before it is called for, since it may be larger than the round before."""

MESSAGE_BYTES = 1024
"""The bytes that a message takes besides its numbers."""

_ChunkKey = tuple[str, int, str, int, int]
"""A chunk is identified by its sender, round, phase, block and start."""


def rounds_begun(current: int, *, newcomer: bool) -> range:
    """Return the rounds after `current` that others may have begun.

    A newcomer may not know yet of one commit more, in which it had no part.
    """
    return range(current + 1, current + (3 if newcomer else 2))


class EarlyChunks:
    """Chunks of a round that this member has not called for yet: each once, in the order in which they came.

    Only the call says what form that round has here, so they cannot be checked before. Others are one round ahead at
    most, since a commit needs everybody. They come in only while this member is inside average(), between the others'
    hearing of a commit and its own. What is beyond the bounds is dropped, and its round is tried again.
    """

    def __init__(self, ring: str, least_bytes: int = LEAST_EARLY_BYTES) -> None:
        self._ring = ring
        self._least_bytes = least_bytes
        self._bytes = 0
        self._kept: dict[_ChunkKey, Delivery] = {}
        self.drops: Counter[str] = Counter()
        """What was not kept, by reason."""

    def keep(
        self,
        delivery: Delivery,
        message: Chunk | HandedOn,
        rounds: Collection[int],
        peers: Collection[str],
        round_bytes: int,
    ) -> None:
        """Keep a delivery of one of `rounds`, which others may have begun, from one of `peers`.

        `round_bytes` is the most that all peers send in the round under way. Beyond that, or beyond LEAST_EARLY_BYTES
        if that is more, nothing is kept.
        """
        phase, block = (message.phase, message.block) if isinstance(message, Chunk) else ("handed on", 0)
        key = delivery.sender, message.round, phase, block, message.start
        n_bytes = MESSAGE_BYTES + sum(tensor.nbytes for tensor in delivery.tensors)
        reason = self._why_not(message, rounds, delivery.sender in peers, key)
        if not reason and self._bytes + n_bytes > max(round_bytes, self._least_bytes):
            reason = "early, and too much"
        if reason:
            self.drops[reason] += 1
            return
        self._bytes += n_bytes
        self._kept[key] = delivery

    def take(self) -> list[Delivery]:
        """Return all deliveries that are kept, and forget them."""
        kept = list(self._kept.values())
        self._kept.clear()
        self._bytes = 0
        return kept

    def _why_not(self, message: Chunk | HandedOn, rounds: Collection[int], from_peer: bool, key: _ChunkKey) -> str:
        if message.ring != self._ring:
            return "early, of another ring"
        if message.round not in rounds:
            return "of a round that nobody can have begun"
        if not from_peer:
            return "early, from no member"
        return "early, and there before" if key in self._kept else ""


class GroupRing:
    """The reducers of a group, one for each form of list that is averaged. It belongs to the endpoint's thread.

    A reducer averages vectors of one form. A member that averages lists of several forms has a reducer for each of
    them, so that what compression took from one list comes back with the next list of its form.
    """

    def __init__(self, endpoint: Endpoint, wire: Wire) -> None:
        self._endpoint = endpoint
        self._wire = wire
        self._reducers: dict[str, RingReducer] = {}  # by form, the one in use last
        self._specs: dict[str, RingSpec] = {}
        self._before = RingStatistics()
        self._early = EarlyChunks(RING)
        self.members: tuple[str, ...] = ()
        """Who is in the ring, in passing order."""

    @property
    def forms(self) -> tuple[str, ...]:
        """These are the forms of lists whose reducers are kept, the one in use last."""
        return tuple(self._reducers)

    def contribute(self, call: Call, number: int) -> None:
        """Contribute the vector of `call` to the round `number`. Raises what RingReducer.contribute raises."""
        self._reducer_for(call, number).contribute(number, RING, call.vector, call.weight)

    def take_early(self) -> list[Delivery]:
        """Return the deliveries that came before contribute(), to be delivered again."""
        return self._early.take()

    def deliver(self, delivery: Delivery, call: Call, current: int, *, newcomer: bool) -> None:
        """Take what arrived during `call`; `current` is the last round that this member knows to have begun.

        Raises ContributionRefused, which names who sent what cannot be averaged.
        """
        message, reducer = delivery.message, self._reducer
        if delivery.epoch != self._endpoint.epoch:
            return
        if isinstance(message, Chunk | HandedOn) and message.round > current:
            others = len(self.members) - 1
            rounds = rounds_begun(current, newcomer=newcomer)
            self._early.keep(delivery, message, rounds, self.members, others * call.vector.nbytes)
        elif reducer is not None:
            reducer.on_delivery(delivery)
        elif isinstance(message, Unacceptable):
            raise ContributionRefused(delivery.sender, RING, current + 1, message.reason)

    def pump(self) -> None:
        """Send what the endpoint had no room for."""
        if (reducer := self._reducer) is not None:
            reducer.pump()

    def finished(self) -> list[RingResult]:
        """Return the averages that became whole since the last call."""
        return [] if (reducer := self._reducer) is None else reducer.finished()

    def progress(self, number: int) -> RingProgress | None:
        """Return how far the ring is in the round `number`, or None if it has not begun here or is whole."""
        return None if (reducer := self._reducer) is None else reducer.progress().get((RING, number))

    def commit(self, number: int) -> None:
        """Forget the round `number`, whose average everybody holds."""
        self._required().commit(number)

    def reform(self, members: tuple[str, ...]) -> None:
        """Take these members for the endpoint's epoch. Nothing is sent before the epoch is under way."""
        self.members = members
        self._early.take()
        for form, reducer in self._reducers.items():
            if reducer is self._reducer:  # the others are brought up to date when they are used again
                before = self._specs[form]
                self._specs[form] = ring_spec(RING, members, before.elements, before.dtype, before.wire)
                reducer.reform([self._specs[form]])

    def restart(self, number: int) -> None:
        """Average again what was contributed to the round `number`."""
        self._required().restart(number)

    def hand_on(self, number: int, to: tuple[str, ...]) -> None:
        """Send the whole average to the members that lack it."""
        self._required().hand_on(number, RING, to)

    def accept(self, number: int, holder: str) -> None:
        """Take the whole average from `holder`."""
        self._required().accept(number, RING, holder)

    def statistics(self) -> RingStatistics:
        """Return what all averages together cost."""
        total = self._before
        for reducer in self._reducers.values():
            total = added(total, reducer.stats.get(RING, RingStatistics()))
        return total

    @property
    def _reducer(self) -> RingReducer | None:
        return next(reversed(self._reducers.values()), None)

    def _required(self) -> RingReducer:
        reducer = self._reducer
        if reducer is None:
            raise InvalidInput("nothing was contributed here yet")
        return reducer

    def _reducer_for(self, call: Call, number: int) -> RingReducer:
        form, vector = call.form, call.vector
        if self._reducer is not None and form == next(reversed(self._reducers)):
            return self._reducer  # as ever: reform() and commit() keep it up to date
        spec = ring_spec(RING, self.members, vector.numel(), vector.dtype, self._wire)
        reducer = self._reducers.pop(form, None)
        if reducer is None:
            reducer = RingReducer(self._endpoint, [spec], max_rounds=1, first_round=number)
        else:
            reducer.commit(number - 1)  # rounds of other forms, too, were rounds
            if self._specs[form] != spec:
                reducer.reform([spec])
        self._reducers[form], self._specs[form] = reducer, spec
        while len(self._reducers) > (1 if self._wire == "exact" else MOST_FORMS):
            oldest = next(iter(self._reducers))
            del self._specs[oldest]
            self._before = added(self._before, self._reducers.pop(oldest).stats.get(RING, RingStatistics()))
        return reducer
