"""The ring of a group at one member: a reducer for what is averaged, and the chunks that came before it was called for.

A reducer averages vectors of one form. Who averages lists of several forms in turn has a reducer for each of them, so
that what compression took from one list comes back with the next list of its form. Decides nothing about members and
rounds, and knows no rendezvous.
"""

from ring_allreduce.errors import InvalidInput
from ring_allreduce.group.calls import Call, ring_spec
from ring_allreduce.group.early_chunks import Early, rounds_begun
from ring_allreduce.group.owner import RING
from ring_allreduce.ring.executor import RingSpec
from ring_allreduce.ring.messages import Chunk, HandedOn
from ring_allreduce.ring.reducer import RingProgress, RingReducer, RingResult
from ring_allreduce.ring.statistics import RingStatistics, added
from ring_allreduce.ring.wire_forms import Wire
from ring_allreduce.transport.endpoint import Delivery, Endpoint

MOST_FORMS = 4
"""So many forms of lists are remembered where numbers travel compressed: each takes two vectors of memory."""


class GroupRing:
    """Belongs to the thread that owns `endpoint`."""

    def __init__(self, endpoint: Endpoint, wire: Wire) -> None:
        self._endpoint = endpoint
        self._wire = wire
        self._reducers: dict[str, RingReducer] = {}  # by form, the one in use last
        self._specs: dict[str, RingSpec] = {}
        self._before = RingStatistics()
        self._early = Early(RING)
        self.members: tuple[str, ...] = ()
        """Who is in the ring, in passing order."""

    def contribute(self, call: Call, number: int) -> None:
        """Average what `call` brings, in the round `number`. Raises what RingReducer.contribute raises."""
        self._reducer_for(call, number).contribute(number, RING, call.vector, call.weight)

    def take_early(self) -> list[Delivery]:
        """What came before contribute(): deliver it again."""
        return self._early.take()

    def deliver(self, delivery: Delivery, call: Call, current: int, *, newcomer: bool) -> None:
        """Take what arrived during `call`; `current`: the last round that this member knows to have begun.

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

    def pump(self) -> None:
        """Send what the endpoint had no room for."""
        if (reducer := self._reducer) is not None:
            reducer.pump()

    def finished(self) -> list[RingResult]:
        """The averages that became whole since the last call."""
        return [] if (reducer := self._reducer) is None else reducer.finished()

    def progress(self, number: int) -> RingProgress | None:
        """How far the ring is in the round `number`; None: it has not begun here, or is whole."""
        return None if (reducer := self._reducer) is None else reducer.progress().get((RING, number))

    def commit(self, number: int) -> None:
        """Everybody holds the average of the round `number`."""
        self._required().commit(number)

    def reform(self, members: tuple[str, ...]) -> None:
        """In the endpoint's epoch these are the members; nothing is sent before the epoch is under way."""
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
        """Send the whole average to those who miss it."""
        self._required().hand_on(number, RING, to)

    def accept(self, number: int, holder: str) -> None:
        """Take the whole average from `holder`."""
        self._required().accept(number, RING, holder)

    def statistics(self) -> RingStatistics:
        """What all averages together cost."""
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
