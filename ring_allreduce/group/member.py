"""One member of a stand-alone group: how it comes in, its ring, and its line to the rendezvous.

In: the options of `Group.join`, then calls of average(). Out: tensors that hold the mean, or an error that names who is
to blame. All of it runs in the thread that joined. It carries out what rounds/member.py says, and decides nothing about
members and rounds itself: whether it may come in is the rendezvous's decision (admission.py). What it averages, and
with which memory, is group_ring.py's.
"""

import contextlib
import logging
import math
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ring_allreduce.errors import ContributionRefused, DeadlinePassed, InvalidInput, PeerLost, RavnestError
from ring_allreduce.group import control_messages as c
from ring_allreduce.group.admission import is_loopback
from ring_allreduce.group.calls import Call, unflatten
from ring_allreduce.group.control_line import ControlLine, reach
from ring_allreduce.group.control_messages import (
    RENDEZVOUS,
    RING,
    JoinMessage,
    MemberAddress,
    order_of,
    peer_address,
    shortened,
    welcome_of,
)
from ring_allreduce.group.group_ring import GroupRing
from ring_allreduce.group.liveness import LATE_SIGNS, Report
from ring_allreduce.ring.messages import RING_KINDS
from ring_allreduce.ring.statistics import RingStatistics
from ring_allreduce.ring.wire_forms import Wire
from ring_allreduce.rounds import events as ev
from ring_allreduce.rounds.deadlines import AwakeTime
from ring_allreduce.rounds.member import EpochMember
from ring_allreduce.transport import Codec, Delivery, Keys, Message, ZmqEndpoint, strangers_in_words

_LOG = logging.getLogger(__name__)

OnLoss = Literal["continue", "fail"]


@dataclass(frozen=True)
class GroupOptions:
    """The arguments of `Group.join`."""

    name: str
    size: int
    host: str
    timeout_s: float
    wire: Wire
    on_loss: OnLoss
    keys: Keys | None = None

    @property
    def patient(self) -> bool:
        """Say whether the group goes on without those who are lost."""
        return self.on_loss == "continue"


@dataclass(frozen=True)
class Entry:
    """The line and the endpoint of a member that has asked to come in and waits for the first epoch."""

    line: ControlLine
    endpoint: ZmqEndpoint
    alive_every_s: float
    """The member gives a sign of life this often, in seconds."""


def enter(options: GroupOptions, rendezvous: tuple[str, int], deadline_s: float) -> Entry:
    """Reach the rendezvous and ask to come in. Raises what `Group.join` raises; nothing is left open then."""
    with contextlib.ExitStack() as opened:
        line = ControlLine(reach(*rendezvous, options.timeout_s, options.keys))
        opened.callback(line.close)
        welcome = welcome_of(next_message(line, options, deadline_s, "an answer of the rendezvous"), options.name)
        endpoint = ZmqEndpoint(
            options.name, codec=Codec(RING_KINDS), token=welcome.token, host=options.host, keys=options.keys
        )
        opened.callback(endpoint.close)
        endpoint.wake_on(line.fileno())
        opened.callback(endpoint.wake_on, None)
        here = endpoint.address
        address = MemberAddress(here.host, here.pipeline_port, here.bulk_port)
        allowed = shortened(options.keys.allowed) if options.keys else {}
        from_ = address_towards(*rendezvous)
        line.tell(JoinMessage(name=options.name, size=options.size, address=address, comes_from=from_, allowed=allowed))
        line.give_signs(welcome.alive_every_s)
        opened.pop_all()
    return Entry(line, endpoint, welcome.alive_every_s)


def next_message(line: ControlLine, options: GroupOptions, deadline_s: float, waited_for: str) -> Message:
    """Return what the rendezvous says next. Raises DeadlinePassed."""
    message = line.next(max(0.0, deadline_s - time.monotonic()))
    if message is None:
        raise DeadlinePassed(waited_for, options.timeout_s)
    return message


def address_towards(host: str, port: int) -> str:
    """Return this machine's address on the way to `host`; it is empty when that is this machine, or unknown.

    Nothing is sent.
    """
    try:
        family, *_, there = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(there)
            here = str(probe.getsockname()[0])
    except OSError:
        return ""
    return "" if is_loopback(here) or here == there[0] else here


class GroupMember:
    """A member, from the moment that the group has met."""

    def __init__(self, options: GroupOptions, rendezvous: tuple[str, int]) -> None:
        """Join the group. Raises what `Group.join` raises."""
        self._options = options
        self._machine = EpochMember(options.name)
        self._call: Call | None = None
        self._report_at_s = 0.0
        self._addresses: dict[str, c.MemberAddress] = {}
        self._flat = torch.empty(0)
        deadline_s = time.monotonic() + options.timeout_s
        entry = enter(options, rendezvous, deadline_s)
        self._line, self._alive_every_s = entry.line, entry.alive_every_s
        self._awake = AwakeTime(LATE_SIGNS * entry.alive_every_s, entry.alive_every_s)
        self._endpoint: ZmqEndpoint | None = entry.endpoint
        self._ring = GroupRing(entry.endpoint, options.wire)
        try:
            while self._machine.paused:
                self._take(next_message(self._line, options, deadline_s, f"the joining of all {options.size} members"))
        except BaseException:
            self.close()
            raise

    @property
    def members(self) -> tuple[str, ...]:
        return self._ring.members

    @property
    def epoch(self) -> int:
        return self._machine.epoch

    @property
    def rounds(self) -> int:
        return self._machine.committed

    @property
    def closed(self) -> bool:
        return self._endpoint is None

    def flat(self, elements: int, dtype: torch.dtype) -> Tensor:
        """Return a vector for a call's numbers. The next call has it again: when one has ended well, nobody reads it.

        Raises InvalidInput where the group was closed.
        """
        if self._endpoint is None:
            raise InvalidInput("this group was closed")
        if self._flat.numel() != elements or self._flat.dtype != dtype:
            self._flat = self._endpoint.empty(elements, dtype)
        return self._flat

    def run(self, call: Call) -> float:
        """Carry `call` through and return the total weight.

        Raises what `Group.average` raises; the member is closed then.
        """
        call.begin(self._awake.at(time.monotonic()), patient=self._options.patient, alive_every_s=self._alive_every_s)
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
        """Leave the group. A second call has no effect."""
        if self._endpoint is not None:
            self._endpoint.wake_on(None)
        self._line.close()
        if self._endpoint is not None:
            # Of a round that was committed everybody has everything, and of another nobody needs this member's part.
            self._endpoint.disconnect(self.members)
            self._endpoint.close()
            self._endpoint = None

    def statistics(self) -> RingStatistics:
        """Return what all calls together cost."""
        return self._ring.statistics()

    def _average(self, call: Call) -> float:
        self._hear()
        while (number := self._machine.next_round) is None:
            self._wait(call)
        self._ring.contribute(call, number)
        call.round = number
        self._machine.handle(ev.RoundContributed(number))
        for delivery in self._ring.take_early():
            self._deliver(call, delivery)
        while True:
            self._collect(call)
            if call.merged and call.result is not None:
                return call.result.total_weight
            self._wait(call)

    # Waiting.

    def _wait(self, call: Call) -> None:
        """Wait until something came, or a sign of life is due. Raises DeadlinePassed."""
        assert self._endpoint is not None
        if self._hear():
            return
        now_s = self._awake.at(time.monotonic())
        if now_s >= self._report_at_s:
            self._report_at_s = now_s + self._alive_every_s
            self._line.report = self._report()
        if now_s >= call.deadline_s:
            raise DeadlinePassed(self._missing(), call.most_s)
        if now_s >= call.overdue_at_s:
            call.overdue_at_s = math.inf
            self._tell(c.OverdueMessage(round=self._machine.committed + 1, waited_s=call.limit_s))
        until_s = min(call.deadline_s, call.overdue_at_s, self._report_at_s)
        for address, count in self._endpoint.stats.strangers.news(now_s).items():
            _LOG.warning("%s has %s", self._options.name, strangers_in_words(address, count))
        for delivery in self._endpoint.poll(max(0.0, until_s - now_s)):
            self._deliver(call, delivery)
        self._ring.pump()

    def _collect(self, call: Call) -> None:
        """What became whole is known to the machine before anything else is."""
        for result in self._ring.finished():
            call.result = result
            self._follow(self._machine.handle(ev.RingFinished(RING, result.round)))

    def _deliver(self, call: Call, delivery: Delivery) -> None:
        current = max(call.round, self._machine.committed)
        try:
            self._ring.deliver(delivery, call, current, newcomer=self._machine.next_round is None)
        except ContributionRefused as error:
            if error.member == self._options.name:
                raise
            # It may be this member that is wrong: the rendezvous asks all.
            reason = error.reason[: c.MAX_REASON_CHARACTERS]
            self._tell(c.SuspectedMessage(epoch=self.epoch, member=error.member, reason=reason))

    def _report(self) -> Report:
        number = self._machine.committed + 1
        at = self._ring.progress(number)
        if at is None:
            whole = self._call is not None and self._call.result is not None
            return Report(epoch=self.epoch, round=number, whole=whole)
        return Report(self.epoch, number, at.received, at.sent, at.waits_for or "")

    def _missing(self) -> str:
        silent_s = time.monotonic() - self._line.heard_s
        if silent_s > LATE_SIGNS * self._alive_every_s:
            return f"a sign of life of the rendezvous, which has said nothing for {silent_s:.1f} s,"
        if self._machine.paused:
            return f"the answer of all members to the beginning of epoch {self.epoch}"
        waits_for = self._report().waits_for
        if waits_for:
            return f"the arrival of the next chunk from {waits_for}"
        return f"the completion of round {self._machine.committed + 1} by all members"

    # The rendezvous.

    def _hear(self) -> bool:
        """Take what the rendezvous has said, and say whether there was anything. What follows a commit is for the next
        call.
        """
        heard, call = False, self._call
        while not (call and call.merged) and (message := self._line.next()) is not None:
            heard = True
            if call is not None:
                self._collect(call)
            self._take(message)
        return heard

    def _take(self, message: Message) -> None:
        order = order_of(message, self._options.name, self._machine.committed + 1)
        if isinstance(message, c.ReformedMessage):
            self._addresses = message.members
            if self._machine.epoch and not self._options.patient:
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
                    self._tell(c.FinishedMessage(epoch=order.epoch, round=order.round, form=self._form_here()))
                case ev.MergeRound():
                    self._merge(order.round)
                case ev.ReformRings():
                    self._reform(order)
                case ev.ReportHeld():
                    rounds = [number for _, number in order.holding]
                    self._tell(c.HeldMessage(epoch=order.epoch, rounds=rounds, form=self._form_here()))
                case ev.RestartRound() | ev.SendAverage() | ev.AcceptAverage():
                    self._recover(order)

    def _form_here(self) -> str:
        return "" if self._call is None else f"{self._call.form}, {self._options.wire}"

    def _recover(self, order: ev.RestartRound | ev.SendAverage | ev.AcceptAverage) -> None:
        match order:
            case ev.RestartRound():
                if self._call is not None:
                    self._call.result = None
                self._ring.restart(order.round)
            case ev.SendAverage():
                self._ring.hand_on(order.round, order.to)
            case ev.AcceptAverage():
                self._ring.accept(order.round, order.holder)

    def _reform(self, order: ev.ReformRings) -> None:
        assert self._endpoint is not None
        self._endpoint.disconnect(set(self.members) - set(order.rings[RING]))
        self._endpoint.epoch = order.epoch
        self._endpoint.connect({name: peer_address(where) for name, where in self._addresses.items()})
        self._ring.reform(order.rings[RING])

    def _merge(self, number: int) -> None:
        call = self._call
        if call is None or call.result is None or call.result.round != number:
            raise InvalidInput(f"round {number} is not whole here")
        unflatten(call.result.average, call.tensors)
        self._ring.commit(number)
        call.merged = True

    def _tell(self, message: Message) -> None:
        try:
            self._line.tell(message)
        except PeerLost:
            # Why the line is dead may have come before it died.
            while (last := self._line.next(self._alive_every_s)) is not None:
                if isinstance(last, c.PutOutMessage):
                    self._take(last)
            raise

    def _leave(self, error: BaseException) -> None:
        """Let the others hear at once, and why, instead of when they see the connection closed."""
        if isinstance(error, RavnestError) and not isinstance(error, PeerLost):
            self._line.farewell(c.LeavingMessage(reason=str(error)[: c.MAX_REASON_CHARACTERS]))
        self.close()
