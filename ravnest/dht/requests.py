"""Requests that wait for their answers, how long they wait, and whom not to ask for a while. Pure.

The time-out is the mean of the round trips plus four times their deviation (RFC 6298), between named bounds. A request
is sent a second time when it is over, since a datagram may be lost, and has failed two time-outs later. An answer that
comes after that is measured still: where all have become slower at once, the time-out would never learn it otherwise.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush

from ravnest.dht.contacts import Address
from ravnest.dht.messages import NONCE_BYTES, AnyMessage, Message

LEAST_TIMEOUT_S = 0.25
FIRST_TIMEOUT_S = 1.0
MOST_TIMEOUT_S = 3.0
AGAIN_FAILS_AFTER = 2.0
"""Time-outs from the second sending until a request has failed."""

MOST_GIVEN_UP = 1024
"""The latest requests that have failed, whose answers are measured if they still come."""

MOST_WAITING = 4096
"""Requests that wait at a time."""

SILENCE_S = 15.0
"""How long an address is left alone that has left two requests in a row unanswered; doubled with each further one."""

LIE_S = 600.0
"""How long it is left alone, and not listened to, when it said what no honest node says; doubled with each time."""

LONGEST_BLOCK_S = 3600.0
MOST_BLOCKED = 4096


class Blacklist:
    """Addresses that are left alone for a while, longer each time. The oldest go when there are too many."""

    def __init__(self) -> None:
        self._failures: OrderedDict[Address, tuple[int, float, bool]] = OrderedDict()
        self._noticed_s: dict[Address, float] = {}
        """Of these: when the last silence was noticed."""

    def __len__(self) -> int:
        return len(self._failures)

    def failed(self, address: Address, sent_s: float, now_s: float) -> None:
        """The address has left a request unanswered that was sent at `sent_s`. Those that were under way when the last
        silence was noticed belong to the same one, and count no further: a line that fails for some seconds fails many
        at once."""
        if sent_s >= self._noticed_s.get(address, float("-inf")):
            self._note(address, now_s, SILENCE_S, lied=False)
            self._noticed_s[address] = now_s

    def lied(self, address: Address, now_s: float) -> None:
        """The address has said what no honest node says."""
        self._note(address, now_s, LIE_S, lied=True)

    def answered(self, address: Address) -> None:
        """The address has answered: its silences are forgotten, its lies are not."""
        known = self._failures.get(address)
        if known is not None and not known[2]:
            del self._failures[address]
            self._noticed_s.pop(address, None)

    def is_blocked(self, address: Address, now_s: float) -> bool:
        """Whether not to ask this address."""
        known = self._failures.get(address)
        return known is not None and now_s < known[1]

    def is_unheard(self, address: Address, now_s: float) -> bool:
        """Whether not even to listen to this address."""
        known = self._failures.get(address)
        return known is not None and known[2] and now_s < known[1]

    def blocked(self, now_s: float) -> int:
        """How many addresses are left alone now."""
        return sum(now_s < until_s for _, until_s, _ in self._failures.values())

    def _note(self, address: Address, now_s: float, base_s: float, *, lied: bool) -> None:
        count, until_s, has_lied = self._failures.pop(address, (0, 0.0, False))
        count += 1
        doubled = count - 1 if lied else count - 2
        if doubled >= 0:
            until_s = max(until_s, now_s + min(base_s * 2.0 ** min(doubled, 12), LONGEST_BLOCK_S))
        self._failures[address] = (count, until_s, has_lied or lied)
        while len(self._failures) > MOST_BLOCKED:
            self._noticed_s.pop(self._failures.popitem(last=False)[0], None)


@dataclass(slots=True)
class _Waiting:
    address: Address
    message: AnyMessage
    expects: type[Message]
    sent_s: float
    timeout_s: float
    resent: bool
    on_answer: Callable[[Message, float], None]
    on_failure: Callable[[float], None]
    on_late: Callable[[float], None]


class Requests:
    """What this node has asked others and not heard of yet."""

    def __init__(self, draw: Callable[[int], bytes], send: Callable[[Address, AnyMessage], None]) -> None:
        """`draw`: makes so many random bytes that nobody can guess. `send`: takes what is to be sent."""
        self._draw = draw
        self._send = send
        self._waiting: dict[bytes, _Waiting] = {}
        self._due: list[tuple[float, bytes]] = []
        self._given_up: OrderedDict[bytes, tuple[Address, type[Message], float]] = OrderedDict()
        self._mean_s: float | None = None
        self._deviation_s = 0.0
        self.blacklist = Blacklist()
        self.sent = self.failed = 0

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def timeout_s(self) -> float:
        """After so long an answer is late."""
        if self._mean_s is None:
            return FIRST_TIMEOUT_S
        return min(max(self._mean_s + 4 * self._deviation_s, LEAST_TIMEOUT_S), MOST_TIMEOUT_S)

    @property
    def round_trip_s(self) -> float | None:
        """The mean round trip, the latest counting most; None before the first."""
        return self._mean_s

    @property
    def next_s(self) -> float | None:
        """When `pass_time` is to be called."""
        while self._due and self._due[0][1] not in self._waiting:
            heappop(self._due)
        return self._due[0][0] if self._due else None

    def ask(
        self,
        address: Address,
        message: Callable[[bytes], AnyMessage],
        now_s: float,
        *,
        expects: type[Message],
        on_answer: Callable[[Message, float], None],
        on_failure: Callable[[float], None],
        on_late: Callable[[float], None] = lambda _: None,
        though_silent: bool = False,
    ) -> bool:
        """Send the request that `message` makes of a nonce. Exactly one of `on_answer` and `on_failure` is called.

        Returns False, and calls neither, when too many wait or the address is to be left alone. though_silent: ask also
        where that is so for its silence.
        """
        leave_alone = self.blacklist.is_unheard if though_silent else self.blacklist.is_blocked
        if len(self._waiting) >= MOST_WAITING or leave_alone(address, now_s):
            return False
        nonce = self._draw(NONCE_BYTES)
        if nonce in self._waiting:
            return False
        asked = message(nonce)
        timeout_s = self.timeout_s
        self._waiting[nonce] = _Waiting(
            address, asked, expects, now_s, timeout_s, False, on_answer, on_failure, on_late
        )
        heappush(self._due, (now_s + timeout_s, nonce))
        self.sent += 1
        self._send(address, asked)
        return True

    def arrived(self, address: Address, message: Message, now_s: float) -> bool:
        """A message that is no request has come. Returns whether it answers a request that waits."""
        waiting = self._waiting.get(message.nonce)
        if waiting is None:
            self._came_too_late(address, message, now_s)
            return False
        if waiting.address != address or type(message) is not waiting.expects:
            return False
        del self._waiting[message.nonce]
        # Counted from the first sending: where all take longer than the time-out, it would never grow otherwise.
        self._measured(now_s - waiting.sent_s)
        self.blacklist.answered(address)
        waiting.on_answer(message, now_s)
        return True

    def pass_time(self, now_s: float) -> None:
        """Send again what is late, and give up what is too late."""
        while (next_s := self.next_s) is not None and next_s <= now_s:
            _, nonce = heappop(self._due)
            waiting = self._waiting[nonce]
            if waiting.resent:
                del self._waiting[nonce]
                self._given_up[nonce] = waiting.address, waiting.expects, waiting.sent_s
                if len(self._given_up) > MOST_GIVEN_UP:
                    self._given_up.popitem(last=False)
                self.failed += 1
                self.blacklist.failed(waiting.address, waiting.sent_s, now_s)
                waiting.on_failure(now_s)
                continue
            waiting.resent = True
            # From now on: a process that did not run for a while has not waited for this second sending.
            heappush(self._due, (now_s + AGAIN_FAILS_AFTER * waiting.timeout_s, nonce))
            self._send(waiting.address, waiting.message)
            waiting.on_late(now_s)

    def _came_too_late(self, address: Address, message: Message, now_s: float) -> None:
        asked, expects, sent_s = self._given_up.get(message.nonce, (None, None, 0.0))
        if asked == address and type(message) is expects:
            del self._given_up[message.nonce]
            self._measured(now_s - sent_s)
            self.blacklist.answered(address)

    def _measured(self, round_trip_s: float) -> None:
        round_trip_s = min(round_trip_s, MOST_TIMEOUT_S)
        if self._mean_s is None:
            self._mean_s, self._deviation_s = round_trip_s, round_trip_s / 2
            return
        self._deviation_s += (abs(round_trip_s - self._mean_s) - self._deviation_s) / 4
        self._mean_s += (round_trip_s - self._mean_s) / 8
