"""When a message leaves an emulated link and when it arrives: arithmetic on times, no clock, no socket.

A message of n bytes leaves at max(now, link_free) + n / rate and arrives `latency_s` later. The lanes of a
link share its rate; when both wait, PIPELINE goes first; within a lane the order is kept. Nothing is ever cut
short: a PIPELINE message waits for at most the one BULK message that is already leaving.
"""

import random
from collections import deque
from dataclasses import dataclass
from typing import Generic, TypeVar

from ring_allreduce.errors import InvalidInput
from ring_allreduce.transport.stats import Lane

T = TypeVar("T")


@dataclass(frozen=True)
class LinkShape:
    """A one-way link to pretend: rate, one-way latency, and a uniform extra delay up to `jitter_s`."""

    bytes_per_s: float
    latency_s: float
    jitter_s: float = 0.0

    def __post_init__(self) -> None:
        if not self.bytes_per_s > 0 or not self.latency_s >= 0 or not self.jitter_s >= 0:
            raise InvalidInput(f"a link needs bytes_per_s > 0, latency_s >= 0, jitter_s >= 0; got {self}")


@dataclass(frozen=True)
class _Waiting(Generic[T]):
    item: T
    n_bytes: int
    queued_at_s: float


class EmulatedLink(Generic[T]):
    """One direction of a link: items go in with their sizes and come out when they would have arrived."""

    def __init__(self, shape: LinkShape, seed: str = "") -> None:
        """`seed` makes the jitter reproducible."""
        self._shape = shape
        self._random = random.Random(seed)
        self._free_at_s = 0.0
        self._waiting: dict[Lane, deque[_Waiting[T]]] = {lane: deque() for lane in Lane}
        self._travelling: dict[Lane, deque[tuple[float, T]]] = {lane: deque() for lane in Lane}

    def change(self, shape: LinkShape) -> None:
        """From now on the link is of another shape; what has left keeps its time of arrival."""
        self._shape = shape

    def push(self, lane: Lane, item: T, n_bytes: int, now_s: float) -> None:
        """Queue `item`. `now_s` must not go backwards from call to call."""
        self._waiting[lane].append(_Waiting(item, n_bytes, now_s))

    def queued(self, lane: Lane) -> int:
        """How many items have not arrived: those that wait for the link, and those that travel on it."""
        return len(self._waiting[lane]) + len(self._travelling[lane])

    def pop_arrived(self, now_s: float) -> list[tuple[Lane, T]]:
        """What has arrived by `now_s`, PIPELINE first, each lane in its order."""
        self._depart(now_s)
        arrived: list[tuple[Lane, T]] = []
        for lane, travelling in self._travelling.items():
            while travelling and travelling[0][0] <= now_s:
                arrived.append((lane, travelling.popleft()[1]))
        return arrived

    def next_due_s(self) -> float | None:
        """When pop_arrived() can next do something (an arrival or a departure); None when empty."""
        times = [travelling[0][0] for travelling in self._travelling.values() if travelling]
        queued = [waiting[0].queued_at_s for waiting in self._waiting.values() if waiting]
        if queued:
            times.append(max(self._free_at_s, min(queued)))
        return min(times, default=None)

    def _depart(self, now_s: float) -> None:
        """Put on the link everything whose turn has come, deciding as at the time of each turn."""
        while any(self._waiting.values()):
            start_s = max(self._free_at_s, min(q[0].queued_at_s for q in self._waiting.values() if q))
            if start_s > now_s:
                return
            lane = next(x for x, q in self._waiting.items() if q and q[0].queued_at_s <= start_s)
            leaving = self._waiting[lane].popleft()
            self._free_at_s = start_s + leaving.n_bytes / self._shape.bytes_per_s
            jitter_s = self._random.uniform(0.0, self._shape.jitter_s) if self._shape.jitter_s else 0.0
            arrives_s = self._free_at_s + self._shape.latency_s + jitter_s
            travelling = self._travelling[lane]
            if travelling:
                arrives_s = max(arrives_s, travelling[-1][0])
            travelling.append((arrives_s, leaving.item))
