"""A node's end of all measurements of links: an endpoint of the transport, and the thread that owns it.

In: requests to ping a peer or to send data to peers. Out: round-trip times and arrival times. `LineTurns` answers the
pings and blocks of others at any time, and drives one measurement of its own at a time until its deadline. It is told
the time, and works over any endpoint. `ProbeLine` is the thread that gives it a socket and the clock. Shared memory is
off, so that the measured path is the one between stages on different machines.
"""

import contextlib
import math
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Thread

import torch

from ravnest.errors import NodeLost, RavnestError, RunFailed
from ravnest.profiling.probes import LARGEST_BLOCK_BYTES, Arrived, Block, Ping, Pong, RoundTrips, Transfer, codec
from ring_allreduce import TransportError
from ring_allreduce.transport import Delivery, Endpoint, Lane, PeerAddress, TransportLimits, ZmqEndpoint

_POLL_S = 0.25
CLOSE_S = 5.0
_QUEUE_MESSAGES = 1 << 14


@dataclass(frozen=True)
class PingTimes:
    """The round-trip times to one peer and the offsets of its clock, both in seconds and in order of time."""

    round_trips_s: tuple[float, ...]
    clock_offsets_s: tuple[float, ...]


@dataclass(frozen=True)
class Arrivals:
    """The arrivals of a transfer: by peer, (seconds since the start, bytes so far). It lasted `until_s` seconds."""

    by_peer: Mapping[str, tuple[tuple[float, int], ...]]
    until_s: float


class LineTurns:
    """What a line does, one turn at a time. All of it belongs to the thread that owns `endpoint`."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._content = torch.randint(0, 256, (LARGEST_BLOCK_BYTES,), dtype=torch.uint8, generator=torch.Generator())
        self._task: RoundTrips | Transfer | None = None
        self._deadline_s = 0.0
        self._asked: Future[None] = Future()

    @property
    def is_idle(self) -> bool:
        """Whether no measurement of its own is going on, so that `begin` may be called."""
        return self._task is None

    def begin(self, task: RoundTrips | Transfer, deadline_s: float, asked: Future[None]) -> None:
        """Takes on a measurement. `asked` gets its end: a TimeoutError once the clock has passed `deadline_s`, a
        TransportError where something cannot be sent.
        """
        self._task, self._deadline_s, self._asked = task, deadline_s, asked

    def due_s(self, now_s: float) -> float:
        """Returns the time of the next turn, if nothing arrives before; infinity while nothing is to be done."""
        return math.inf if self._task is None else self._task.due_s(now_s)

    def handle(self, delivery: Delivery, now_s: float, wall_s: float) -> None:
        """Answers what another measures, and tells the own measurement what arrived.

        `wall_s` is this machine's clock in seconds since 1970.
        """
        with contextlib.suppress(TransportError):  # who gets no answers any more has its own deadline to find out
            match delivery.message:
                case Ping(number=number):
                    self._endpoint.send(delivery.sender, Lane.PIPELINE, Pong(number=number, wall_s=wall_s))
                case Block(transfer=transfer, number=number):
                    self._endpoint.send(delivery.sender, Lane.PIPELINE, Arrived(transfer=transfer, number=number))
        if self._task is not None:
            self._task.handle(delivery.sender, delivery.message, now_s)

    def turn(self, now_s: float, wall_s: float) -> None:
        """Sends what the own measurement has to send now, and ends it where it is done, has failed or is too late."""
        if self._task is None:
            return
        try:
            for each in self._task.turn(now_s, wall_s):
                content = [self._content[: each.n_bytes]] if each.n_bytes else []
                self._endpoint.send(each.peer, each.lane, each.message, content)
        except TransportError as error:  # this measurement has failed; the line goes on answering
            self._task = None
            self._asked.set_exception(error)
            return
        if self._task.done:
            self._task = None
            self._asked.set_result(None)
        elif now_s > self._deadline_s:
            self._task = None
            self._asked.set_exception(TimeoutError())


class ProbeLine:
    """Measures links from this node. It must be used from one thread, and closed at the end."""

    def __init__(self, name: str, host: str, token: bytes) -> None:
        """Binds two free ports of `host`, as a stage does. Raises RunFailed where it cannot."""
        self.name = name
        self._tasks: SimpleQueue[tuple[RoundTrips | Transfer, float, Future[None]]] = SimpleQueue()
        self._peers: SimpleQueue[tuple[Mapping[str, PeerAddress], Future[None]]] = SimpleQueue()
        self._closing = False
        self._transfers = 0
        ready: Future[ZmqEndpoint] = Future()
        self._thread = Thread(target=self._serve, args=(name, host, token, ready), name="probe", daemon=True)
        self._thread.start()
        try:
            self._endpoint = ready.result(CLOSE_S)
        except (RavnestError, OSError) as error:
            self._closing = True
            raise RunFailed(f"{name} cannot listen at {host}: {_why(error)}") from error
        self.address = self._endpoint.address

    def connect(self, peers: Mapping[str, PeerAddress]) -> None:
        """Makes the addresses of peers known to the endpoint. Raises RunFailed where an address cannot be used."""
        asked: Future[None] = Future()
        self._peers.put((peers, asked))
        self._endpoint.wake()
        try:
            asked.result(CLOSE_S)
        except (RavnestError, OSError) as error:
            raise RunFailed(f"{self.name} cannot use its peers' addresses: {_why(error)}") from error

    def ping(self, peer: str, lane: Lane, count: int, seconds: float, deadline_s: float) -> PingTimes:
        """Pings `peer` for `seconds` seconds, and at least `count` times.

        Raises NodeLost where that takes longer than `deadline_s`, or where nothing can be sent to `peer`.
        """
        task = RoundTrips(peer, lane, count, seconds, time.monotonic())
        self._drive(task, deadline_s, peer)
        return PingTimes(tuple(task.round_trips_s), tuple(task.clock_offsets_s))

    def transfer(self, peers: Sequence[str], seconds: float, deadline_s: float) -> Arrivals:
        """Sends to all of `peers` at once for `seconds` seconds.

        Raises NodeLost where the data has not arrived within `deadline_s` or cannot be sent.
        """
        self._transfers += 1
        began_s = time.monotonic()
        task = Transfer(self._transfers, peers, seconds, began_s)
        self._drive(task, deadline_s, ", ".join(peers))
        since = {
            peer: tuple((at_s - began_s, total) for at_s, total in points) for peer, points in task.arrivals.items()
        }
        return Arrivals(since, seconds)

    def close(self) -> None:
        """Ends the thread and closes the ports."""
        self._closing = True
        self._endpoint.wake()
        self._thread.join(CLOSE_S)

    def _drive(self, task: RoundTrips | Transfer, deadline_s: float, whom: str) -> None:
        asked: Future[None] = Future()
        self._tasks.put((task, time.monotonic() + deadline_s, asked))
        self._endpoint.wake()
        try:
            asked.result(deadline_s + CLOSE_S)
        except TimeoutError:
            raise NodeLost(f"{self.name} got no answer from {whom} within {deadline_s:.0f} s") from None
        except TransportError as error:
            raise NodeLost(f"{self.name} cannot send to {whom}: {error}") from error

    def _serve(self, name: str, host: str, token: bytes, ready: "Future[ZmqEndpoint]") -> None:
        try:
            limits = TransportLimits(max_message_bytes=2 * LARGEST_BLOCK_BYTES, queue_messages=_QUEUE_MESSAGES)
            endpoint = ZmqEndpoint(name, codec=codec(), token=token, host=host, limits=limits, shared_memory=False)
        except Exception as error:  # noqa: BLE001 - raised where the line is asked for
            ready.set_exception(error)
            return
        ready.set_result(endpoint)
        try:
            self._loop(endpoint)
        finally:
            endpoint.close()

    def _loop(self, endpoint: ZmqEndpoint) -> None:
        turns = LineTurns(endpoint)
        while not self._closing:
            now_s = time.monotonic()
            for delivery in endpoint.poll(min(_POLL_S, max(0.0, turns.due_s(now_s) - now_s))):
                turns.handle(delivery, time.monotonic(), time.time())
            self._meet(endpoint)
            if turns.is_idle:
                with contextlib.suppress(Empty):
                    turns.begin(*self._tasks.get_nowait())
            turns.turn(time.monotonic(), time.time())

    def _meet(self, endpoint: ZmqEndpoint) -> None:
        while not self._peers.empty():
            peers, asked = self._peers.get()
            try:
                endpoint.connect(peers)
                asked.set_result(None)
            except Exception as error:  # noqa: BLE001 - raised where it was asked for
                asked.set_exception(error)


def _why(error: Exception) -> str:
    return str(error) or f"not done within {CLOSE_S:.0f} s"
