"""One member of a stand-alone group: its endpoint, its ring and its line to the rendezvous, in the thread that joined.

Carries out what epoch_member.py says and decides nothing about members and rounds itself. A chunk of a round that this
member has not called for yet is kept until it does: only the call says what form that round has here.
"""

import math
import time
from collections.abc import Sequence

from ring_allreduce import control as c
from ring_allreduce import round_events as ev
from ring_allreduce.control_line import ControlLine, reach
from ring_allreduce.early import Early
from ring_allreduce.epoch_member import EpochMember
from ring_allreduce.errors import ContributionRefused, DeadlinePassed, InvalidInput, PeerLost, RingError
from ring_allreduce.flattening import unflatten
from ring_allreduce.flight import RingSpec
from ring_allreduce.group_call import Call, GroupOptions
from ring_allreduce.group_orders import RENDEZVOUS, order_of, peer_address, welcome_of
from ring_allreduce.group_owner import RING
from ring_allreduce.messages import RING_KINDS, Chunk, HandedOn
from ring_allreduce.reducer import RingReducer
from ring_allreduce.statistics import RingStatistics, added
from ring_allreduce.transport.endpoint import Delivery
from ring_allreduce.transport.message import Codec, Message
from ring_allreduce.transport.zmq_endpoint import ZmqEndpoint
from ring_allreduce.watch import Report


class GroupMember:
    """A member, from the moment that the group has met."""

    def __init__(self, options: GroupOptions, rendezvous: tuple[str, int]) -> None:
        """Joins. Raises what `Group.join` raises."""
        self._options = options
        self._machine = EpochMember(options.name)
        self._endpoint: ZmqEndpoint | None = None
        self._reducer: RingReducer | None = None
        self._form = ""
        self._before = RingStatistics()
        self._early = Early(RING)
        self._call: Call | None = None
        self._alive_every_s = 1.0
        self._report_at_s = 0.0
        self.members: tuple[str, ...] = ()
        self._addresses: dict[str, c.MemberAddress] = {}
        deadline_s = time.monotonic() + options.timeout_s
        self._line = ControlLine(reach(*rendezvous, options.timeout_s, options.keys))
        try:
            self._meet(deadline_s)
        except BaseException:
            self.close()
            raise

    @property
    def epoch(self) -> int:
        return self._machine.epoch

    @property
    def rounds(self) -> int:
        return self._machine.committed

    @property
    def closed(self) -> bool:
        return self._endpoint is None

    def run(self, call: Call) -> float:
        """Carry `call` through; the total weight. Raises what `Group.average` raises, and is closed then."""
        call.begin(time.monotonic(), patient=self._options.patient)
        self._call = call
        self._line.report = Report(epoch=self.epoch, round=self._machine.committed + 1)
        try:
            return self._average(call)
        except BaseException as error:
            self._leave(error)
            raise
        finally:
            self._call = None
            self._line.report = Report(epoch=self.epoch)

    def close(self) -> None:
        """Leave the group. Idempotent."""
        if self._endpoint is not None:
            self._endpoint.wake_on(None)
        self._line.close()
        if self._endpoint is not None:
            self._endpoint.close()
            self._endpoint = None
            self._drop_reducer()

    def statistics(self) -> RingStatistics:
        """What all calls together cost."""
        now = self._reducer.stats.get(RING) if self._reducer else None
        return self._before if now is None else added(self._before, now)

    def _average(self, call: Call) -> float:
        self._hear()
        while (number := self._machine.next_round) is None:
            self._wait(call)
        reducer = self._reducer_for(call, number)
        call.round = number
        reducer.contribute(number, RING, call.vector, call.weight)
        self._machine.handle(ev.Contributed(number))
        for delivery in self._early.take():
            self._deliver(call, delivery)
        while True:
            self._collect(call)
            if call.merged and call.result is not None:
                return call.result.total_weight
            self._wait(call)

    def _reducer_for(self, call: Call, number: int) -> RingReducer:
        """The ring for what is averaged now: the same as long as its form is, with its memory."""
        assert self._endpoint is not None
        if self._reducer is None or self._form != call.form:
            self._form = call.form
            self._drop_reducer()
            self._reducer = RingReducer(self._endpoint, [self._spec(call)], max_rounds=1, first_round=number)
        return self._reducer

    def _drop_reducer(self) -> None:
        self._before = self.statistics()
        self._reducer = None

    def _spec(self, call: Call) -> RingSpec:
        return call.spec(RING, self.members, self._options.wire)

    # Waiting.

    def _wait(self, call: Call) -> None:
        """Until something came, or a sign of life is due. Raises DeadlinePassed."""
        assert self._endpoint is not None
        if self._hear():
            return
        now_s = time.monotonic()
        if now_s >= self._report_at_s:
            self._report_at_s = now_s + self._alive_every_s
            self._line.report = self._report()
        if now_s >= call.deadline_s:
            raise DeadlinePassed(self._missing(), call.most_s)
        if now_s >= call.overdue_at_s:
            call.overdue_at_s = math.inf
            self._tell(c.Overdue(round=self._machine.committed + 1, waited_s=call.limit_s))
        until_s = min(call.deadline_s, call.overdue_at_s, self._report_at_s)
        for delivery in self._endpoint.poll(max(0.0, until_s - now_s)):
            self._deliver(call, delivery)
        if self._reducer is not None:
            self._reducer.pump()

    def _collect(self, call: Call) -> None:
        """What became whole is known to the machine before anything else is."""
        for result in self._reducer.finished() if self._reducer else ():
            call.result = result
            self._follow(self._machine.handle(ev.RingFinished(RING, result.round)))

    def _deliver(self, call: Call, delivery: Delivery) -> None:
        message, current = delivery.message, max(call.round, self._machine.committed)
        if isinstance(message, Chunk | HandedOn) and message.round > current and delivery.epoch == self.epoch:
            # A newcomer may not know yet of a commit in which it had no part.
            last = current + (2 if self._machine.next_round is None else 1)
            self._early.keep(delivery, message, range(current + 1, last + 1), self.members)
            return
        if self._reducer is None or delivery.epoch != self.epoch:
            return
        try:
            self._reducer.on_delivery(delivery)
        except ContributionRefused as error:
            if not self._options.patient or error.member == self._options.name:
                raise
            self._tell(c.Suspected(epoch=self.epoch, member=error.member, reason=error.reason))

    def _report(self) -> Report:
        number = self._machine.committed + 1
        at = None if self._reducer is None else self._reducer.progress().get((RING, number))
        if at is None:
            whole = self._call is not None and self._call.result is not None
            return Report(epoch=self.epoch, round=number, whole=whole)
        return Report(self.epoch, number, at.received, at.sent, at.waits_for or "")

    def _missing(self) -> str:
        if self._machine.paused:
            return f"the answer of all members to the beginning of epoch {self.epoch}"
        waits_for = self._report().waits_for
        if waits_for:
            return f"the arrival of the next chunk from {waits_for}"
        return f"the completion of round {self._machine.committed + 1} by all members"

    # The rendezvous.

    def _meet(self, deadline_s: float) -> None:
        options = self._options
        welcome = welcome_of(self._next(deadline_s, "an answer of the rendezvous"), options.name)
        self._endpoint = ZmqEndpoint(
            options.name, codec=Codec(RING_KINDS), token=welcome.token, host=options.host, keys=options.keys
        )
        self._endpoint.wake_on(self._line.fileno())
        here = self._endpoint.address
        address = c.MemberAddress(here.host, here.pipeline_port, here.bulk_port)
        self._tell(c.Join(name=options.name, size=options.size, address=address))
        self._alive_every_s = welcome.alive_every_s
        self._line.give_signs(welcome.alive_every_s)
        while self._machine.paused:
            self._take(self._next(deadline_s, f"the joining of all {options.size} members"))

    def _next(self, deadline_s: float, waited_for: str) -> Message:
        message = self._line.next(max(0.0, deadline_s - time.monotonic()))
        if message is None:
            raise DeadlinePassed(waited_for, self._options.timeout_s)
        return message

    def _hear(self) -> bool:
        """Take what the rendezvous has said; whether there was anything. What follows a commit is for the next call."""
        heard, call = False, self._call
        while not (call and call.merged) and (message := self._line.next()) is not None:
            heard = True
            if call is not None:
                self._collect(call)
            self._take(message)
        return heard

    def _take(self, message: Message) -> None:
        order = order_of(message, self._options.name, self._machine.committed + 1)
        if isinstance(message, c.Reformed):
            self._addresses = message.members
            if self.members and not self._options.patient:
                for member, reason in message.lost.items():
                    raise PeerLost(member, reason)
        try:
            self._follow(self._machine.handle(order))
        except InvalidInput as error:  # no input of the caller's: it came over the network
            raise PeerLost(RENDEZVOUS, f"what it ordered cannot be done: {error}") from None

    def _follow(self, orders: Sequence[ev.EpochInstruction]) -> None:
        for order in orders:
            match order:
                case ev.ReportFinished():
                    self._tell(c.Finished(epoch=order.epoch, round=order.round, form=self._form_here()))
                case ev.MergeRound():
                    self._merge(order.round)
                case ev.ReformRings():
                    self._reform(order)
                case ev.ReportHeld():
                    rounds = [number for _, number in order.holding]
                    self._tell(c.Held(epoch=order.epoch, rounds=rounds, form=self._form_here()))
                case _:
                    self._recover(order)

    def _form_here(self) -> str:
        return "" if self._call is None else f"{self._call.form}, {self._options.wire}"

    def _recover(self, order: ev.RestartRound | ev.SendAverage | ev.AcceptAverage) -> None:
        if self._reducer is None:
            raise InvalidInput("nothing was contributed here yet")
        match order:
            case ev.RestartRound():
                if self._call is not None:
                    self._call.result = None
                self._reducer.restart(order.round)
            case ev.SendAverage():
                self._reducer.hand_on(order.round, RING, order.to)
            case ev.AcceptAverage():
                self._reducer.accept(order.round, RING, order.holder)

    def _reform(self, order: ev.ReformRings) -> None:
        assert self._endpoint is not None
        self._endpoint.disconnect(set(self.members) - set(order.rings[RING]))
        self._endpoint.epoch = order.epoch
        self._endpoint.connect({name: peer_address(where) for name, where in self._addresses.items()})
        self.members = order.rings[RING]
        self._early.take()
        if self._reducer is not None and self._call is not None and self._call.form == self._form:
            self._reducer.reform([self._spec(self._call)])
        else:
            self._drop_reducer()

    def _merge(self, number: int) -> None:
        call = self._call
        if call is None or call.result is None or call.result.round != number or self._reducer is None:
            raise InvalidInput(f"round {number} is not whole here")
        unflatten(call.result.average, call.tensors)
        self._reducer.commit(number)
        call.merged = True

    def _tell(self, message: Message) -> None:
        try:
            self._line.tell(message)
        except PeerLost:
            # Why the line is dead may have come before it died.
            while (last := self._line.next(self._alive_every_s)) is not None:
                if isinstance(last, c.PutOut):
                    self._take(last)
            raise

    def _leave(self, error: BaseException) -> None:
        """Let the others hear at once, and why, instead of when they see the connection closed."""
        if isinstance(error, RingError) and not isinstance(error, PeerLost):
            self._line.farewell(c.Leaving(reason=str(error)[: c.MAX_REASON_CHARACTERS]))
        self.close()
