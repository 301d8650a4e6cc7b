"""The state machines of link measurements: round trips to one peer, and a transfer to one or several peers at once.

In: messages with their arrival times (`handle`), and the present time (`turn`). Out: the messages to send, and the
times that were measured. The module is pure: probe_line.py owns the socket and the clock, and it keeps the deadlines.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from ring_allreduce.transport import ClockSeconds, Codec, Count, Lane, Message


class Ping(Message, frozen=True, kw_only=True, tag="ping"):
    """Asks a peer to answer at once."""

    number: Count


class Pong(Message, frozen=True, kw_only=True, tag="pong"):
    """The answer to the ping of this number, with the clock of the answering machine in seconds since 1970."""

    number: Count
    wall_s: ClockSeconds


class Block(Message, frozen=True, kw_only=True, tag="block"):
    """A piece of a transfer; one tensor of bytes comes with it."""

    transfer: Count
    number: Count


class Arrived(Message, frozen=True, kw_only=True, tag="arrived"):
    """Says that the receiver has this block."""

    transfer: Count
    number: Count


def codec() -> Codec:
    """Returns the codec of all messages of measurements."""
    return Codec((Ping, Pong, Block, Arrived))


GAP_S = 0.005
"""The time between an answer and the next ping, so that pings do not queue behind each other."""

LEAST_BLOCK_BYTES, LARGEST_BLOCK_BYTES = 1 << 15, 1 << 22
BLOCK_S = 0.02
"""A block takes about this long, so that arrivals show the rate finely and handling costs little."""

LEAST_AHEAD_BYTES, LARGEST_AHEAD_BYTES = 1 << 19, 1 << 28
AHEAD_S = 1.0
"""Data for so many seconds is on its way at once, at the present rate: enough for any path on earth and its queues."""


@dataclass(frozen=True)
class ProbeMessage:
    """A message to send to `peer`, with `n_bytes` bytes of content."""

    peer: str
    lane: Lane
    message: Message
    n_bytes: int = 0


class RoundTrips:
    """Pings one peer, one ping at a time, at least `count` times and for `seconds` seconds.

    The more pings there are, the likelier is one that nothing delayed. `round_trips_s` has their times in order.
    `clock_offsets_s` has the peer's clock less ours, if the answer was given in the middle of the round trip.
    """

    def __init__(self, peer: str, lane: Lane, count: int, seconds: float, now_s: float) -> None:
        self.peer = peer
        self.round_trips_s: list[float] = []
        self.clock_offsets_s: list[float] = []
        self._lane = lane
        self._count = count
        self._sent_s: float | None = None
        self._sent_wall_s = 0.0
        self._next_s = float("-inf")
        self._until_s = now_s + seconds
        self.done = False

    def turn(self, now_s: float, wall_s: float) -> list[ProbeMessage]:
        if self.done or self._sent_s is not None or now_s < self._next_s:
            return []
        self._sent_s, self._sent_wall_s = now_s, wall_s
        return [ProbeMessage(self.peer, self._lane, Ping(number=len(self.round_trips_s)))]

    def handle(self, sender: str, message: Message, now_s: float) -> None:
        expected = isinstance(message, Pong) and message.number == len(self.round_trips_s)
        if sender != self.peer or self._sent_s is None or not expected:
            return
        assert isinstance(message, Pong)
        round_trip_s = now_s - self._sent_s
        self.round_trips_s.append(round_trip_s)
        self.clock_offsets_s.append(message.wall_s - (self._sent_wall_s + round_trip_s / 2))
        self._sent_s, self._next_s = None, now_s + GAP_S
        self.done = len(self.round_trips_s) >= self._count and now_s >= self._until_s

    def due_s(self, now_s: float) -> float:
        return float("inf") if self._sent_s is not None else max(now_s, self._next_s)


@dataclass
class _Flow:
    """What was sent to one peer and what of it has arrived."""

    sent: int = 0
    arrived: int = 0
    number: int = 0
    under_way: dict[int, int] = field(default_factory=dict)
    arrivals: list[tuple[float, int]] = field(default_factory=list)
    lately: deque[tuple[float, int]] = field(default_factory=deque)

    def rate(self, now_s: float) -> float:
        """Returns the bytes per second that arrived in the last AHEAD_S seconds."""
        while len(self.lately) > 1 and self.lately[0][0] < now_s - AHEAD_S:
            self.lately.popleft()
        if len(self.lately) < 2:
            return 0.0
        seconds = max(self.lately[-1][0] - self.lately[0][0], 1e-3)
        return (self.lately[-1][1] - self.lately[0][1]) / seconds


class Transfer:
    """Sends to all of `peers` at once for `seconds` seconds, as fast as they take it."""

    def __init__(self, number: int, peers: Sequence[str], seconds: float, now_s: float) -> None:
        self.number = number
        self.until_s = now_s + seconds
        self._flows = {peer: _Flow() for peer in peers}
        self._over = False

    @property
    def arrivals(self) -> dict[str, list[tuple[float, int]]]:
        """The arrivals at each peer: pairs of a time in seconds and the bytes that had arrived by then."""
        return {peer: list(flow.arrivals) for peer, flow in self._flows.items()}

    @property
    def done(self) -> bool:
        """Whether the time is over and everything that was sent has arrived."""
        return self._over and not any(flow.under_way for flow in self._flows.values())

    def turn(self, now_s: float, wall_s: float) -> list[ProbeMessage]:
        self._over = self._over or now_s >= self.until_s
        if self._over:
            return []
        return [each for peer, flow in self._flows.items() for each in self._fill(peer, flow, now_s)]

    def _fill(self, peer: str, flow: _Flow, now_s: float) -> list[ProbeMessage]:
        rate = flow.rate(now_s)
        ahead = min(max(AHEAD_S * rate, LEAST_AHEAD_BYTES), LARGEST_AHEAD_BYTES)
        size = int(min(max(BLOCK_S * rate, LEAST_BLOCK_BYTES), LARGEST_BLOCK_BYTES))
        blocks = []
        while flow.sent - flow.arrived + size <= ahead:
            blocks.append(ProbeMessage(peer, Lane.BULK, Block(transfer=self.number, number=flow.number), size))
            flow.under_way[flow.number] = size
            flow.number += 1
            flow.sent += size
        return blocks

    def handle(self, sender: str, message: Message, now_s: float) -> None:
        flow = self._flows.get(sender)
        if flow is None or not isinstance(message, Arrived) or message.transfer != self.number:
            return
        size = flow.under_way.pop(message.number, None)
        if size is not None:
            flow.arrived += size
            flow.arrivals.append((now_s, flow.arrived))
            flow.lately.append((now_s, flow.arrived))

    def due_s(self, now_s: float) -> float:
        """Returns the time when `turn` is due: the end of the transfer, since answers call it before that."""
        return float("inf") if self._over else self.until_s
