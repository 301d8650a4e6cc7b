"""When a message leaves an emulated node, reaches the next one, and has entered it: arithmetic on times, no clock.

A message of n bytes takes its node's uplink for n / up, and from the same moment on the pair's link for n / link (it is
not stored in between). It is at the other end `latency_s` and jitter later, and takes the downlink there for n / down,
beginning with its first byte; it has entered no sooner than its last byte came. Each of the three carries one message
at a time, so none ever carries more than its rate. A message that waits for one peer's link does not stop those to
another. Where messages wait, PIPELINE goes first, and within a lane those to (or from) one peer keep their order. No
message is interrupted: PIPELINE waits for at most the one BULK message that is already leaving. Nothing holds back a
sender whose receiver's downlink is too slow: messages wait in front of it.

In: rates, delays, and the sizes of messages. Out: the times at which they arrive. "now" never goes backwards.
"""

import random
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from typing import Generic, TypeVar

from ring_allreduce.errors import InvalidInput
from ring_allreduce.transport.stats import Lane

T = TypeVar("T")

RANK = {lane: rank for rank, lane in enumerate(Lane)}
"""The order in which lanes are served: a smaller rank goes first."""

_GAPS = 16
"""How many idle times are remembered. A forgotten one makes the downlink slower, never faster."""


@dataclass(frozen=True)
class LinkShape:
    """A one-way link to emulate: rate, one-way latency, and an extra delay, uniform between 0 and `jitter_s`."""

    bytes_per_s: float
    latency_s: float
    jitter_s: float = 0.0

    def __post_init__(self) -> None:
        if not self.bytes_per_s > 0 or not self.latency_s >= 0 or not self.jitter_s >= 0:
            raise InvalidInput(f"a link needs bytes_per_s > 0, latency_s >= 0, jitter_s >= 0; got {self}")


@dataclass(frozen=True)
class NodeShape:
    """A node's uplink and downlink, which all messages that it sends, and all that it receives, share."""

    up_bytes_per_s: float
    down_bytes_per_s: float
    arriving_bytes_per_s: Mapping[str, float] = field(default_factory=dict)
    """The peers that are reached through these, with the rate at which a message of each arrives at most. Other peers
    are beside the node, and reached by the pair's link alone."""

    def __post_init__(self) -> None:
        rates = (self.up_bytes_per_s, self.down_bytes_per_s, *self.arriving_bytes_per_s.values())
        if not all(rate > 0 for rate in rates):
            raise InvalidInput(f"a node needs rates above 0; got {self}")


class _Link(Generic[T]):
    """The link to one peer, and the messages that wait for it."""

    __slots__ = ("_chance", "_seed", "free_at_s", "in_order_s", "peer", "queued", "shape", "waiting")

    def __init__(self, peer: str, shape: LinkShape, seed: str) -> None:
        self.peer = peer
        self.shape = shape
        self._seed = seed
        self._chance: Callable[[], float] | None = None  # most links need none, and it is large
        self.free_at_s = float("-inf")
        self.in_order_s = dict.fromkeys(Lane, float("-inf"))
        """Lane → when its last message arrives."""
        self.waiting: dict[Lane, deque[tuple[int, T, int]]] = {lane: deque() for lane in Lane}
        self.queued = dict.fromkeys(Lane, 0)

    def jitter_s(self) -> float:
        if self._chance is None:
            self._chance = random.Random(self._seed).random
        return self.shape.jitter_s * self._chance()


class EmulatedUplink(Generic[T]):
    """Everything that leaves one node: items go in with their sizes, and come out when they are at the other end."""

    def __init__(self, up_bytes_per_s: float, links: Mapping[str, LinkShape], *, seed: str = "") -> None:
        """`links`: by peer. `seed` makes the jitter reproducible. `up_bytes_per_s` may be infinite: then only the links
        take time."""
        self._up_bytes_per_s = up_bytes_per_s
        self._seed = seed
        self._links: dict[str, _Link[T]] = {}
        for peer, shape in links.items():
            self.add(peer, shape)
        self._free_at_s = float("-inf")
        self._busy: dict[str, _Link[T]] = {}
        """The links for which a message waits, by peer."""
        self._travelling: list[tuple[float, int, int, _Link[T], Lane, T]] = []
        self._start_s = float("-inf")
        """When the next message that waits can leave."""
        self._numbers = count()

    def __contains__(self, peer: str) -> bool:
        """Say whether there is a link to `peer`."""
        return peer in self._links

    def add(self, peer: str, shape: LinkShape) -> None:
        """Add a link to one more peer."""
        self._links[peer] = _Link(peer, shape, f"{self._seed}->{peer}")

    def push(self, peer: str, lane: Lane, item: T, n_bytes: int, now_s: float) -> None:
        """Send `item`, of `n_bytes`. `now_s` must not go backwards from call to call."""
        if self._busy:
            self._depart(now_s)
        link = self._links[peer]
        link.queued[lane] += 1
        if self._free_at_s <= now_s and link.free_at_s <= now_s and peer not in self._busy:
            at_s = self._leave(link, lane, n_bytes, now_s)
            heappush(self._travelling, (at_s, RANK[lane], next(self._numbers), link, lane, item))
        else:
            link.waiting[lane].append((next(self._numbers), item, n_bytes))
            self._busy[peer] = link

    def leave_at_once(self, peer: str, lane: Lane, n_bytes: int, now_s: float) -> float | None:
        """Let a message leave now, and return when it will be at the other end. No pop gives it back, so callers keep a
        calendar of their own.

        Returns None, without effect, where another message waits or is leaving: then it has to be pushed.
        """
        link = self._links[peer]
        if self._busy or self._free_at_s > now_s or link.free_at_s > now_s:
            return None
        return self._leave(link, lane, n_bytes, now_s)

    def queued(self, peer: str, lane: Lane) -> int:
        """Return how many items for `peer` wait or travel, and are not at the other end."""
        return self._links[peer].queued[lane]

    def pop_arrived(self, now_s: float) -> list[tuple[float, str, Lane, T]]:
        """Return what has come to the other end by `now_s`, with the time at which it did, in the order of these
        times.
        """
        if self._busy:
            self._depart(now_s)
        arrived = []
        while self._travelling and self._travelling[0][0] <= now_s:
            at_s, _, _, link, lane, item = heappop(self._travelling)
            link.queued[lane] -= 1
            arrived.append((at_s, link.peer, lane, item))
        return arrived

    def pop_left(self, now_s: float) -> list[tuple[float, str, Lane, T]]:
        """Return what has left by `now_s`, in any order, with the time at which it will be at the other end.

        For callers with a calendar. Within a lane, nothing that leaves later comes sooner.
        """
        if self._busy:
            self._depart(now_s)
        left = []
        for at_s, _, _, link, lane, item in self._travelling:
            link.queued[lane] -= 1
            left.append((at_s, link.peer, lane, item))
        self._travelling.clear()
        return left

    def next_start_s(self) -> float | None:
        """Return when pop_left(), which was called just now, can next return something; None when nothing waits."""
        return self._start_s if self._busy else None

    def next_due_s(self) -> float | None:
        """Return the time of the next arrival or departure, when pop_arrived() can next do something, or None when
        empty.
        """
        due_s = self._travelling[0][0] if self._travelling else None
        if self._busy:
            next_s = self._next_start_s()
            due_s = next_s if due_s is None else min(due_s, next_s)
        return due_s

    def change(
        self, now_s: float, *, up_bytes_per_s: float | None = None, links: Mapping[str, LinkShape] | None = None
    ) -> None:
        """Change the rates from now on. What has left keeps its time of arrival."""
        self._depart(now_s)
        self._up_bytes_per_s = up_bytes_per_s or self._up_bytes_per_s
        for peer, shape in (links or {}).items():
            self._links[peer].shape = shape

    def forget(self, peer: str) -> None:
        """Drop everything that is under way to `peer`."""
        link = self._links[peer]
        self._busy.pop(peer, None)
        for lane in Lane:
            link.waiting[lane].clear()
            link.queued[lane] = 0
        self._travelling = sorted(entry for entry in self._travelling if entry[3] is not link)

    def _next_start_s(self) -> float:
        busy = self._busy
        if len(busy) == 1:
            for link in busy.values():
                return max(self._free_at_s, link.free_at_s)
        free_at_s = min([link.free_at_s for link in busy.values()])
        return self._free_at_s if self._free_at_s > free_at_s else free_at_s

    def _depart(self, now_s: float) -> None:
        """Let everything leave whose turn has come, deciding as at the time of each turn.

        Whatever waits was pushed before that time: each push comes here first, with its own.
        """
        while self._busy:
            start_s = self._start_s = self._next_start_s()
            if start_s > now_s:
                return
            lane, link = _first_in_turn(link for link in self._busy.values() if link.free_at_s <= start_s)
            number, item, n_bytes = link.waiting[lane].popleft()
            if not any(link.waiting.values()):
                del self._busy[link.peer]
            at_s = self._leave(link, lane, n_bytes, start_s)
            heappush(self._travelling, (at_s, RANK[lane], number, link, lane, item))

    def _leave(self, link: _Link[T], lane: Lane, n_bytes: int, start_s: float) -> float:
        """Let a message leave at `start_s`, and return when it is at the other end."""
        shape = link.shape
        up_s = self._free_at_s = start_s + n_bytes / self._up_bytes_per_s
        link_s = link.free_at_s = start_s + n_bytes / shape.bytes_per_s
        at_s = (up_s if up_s > link_s else link_s) + shape.latency_s
        if shape.jitter_s:
            at_s += link.jitter_s()
        if at_s < link.in_order_s[lane]:
            return link.in_order_s[lane]
        link.in_order_s[lane] = at_s
        return at_s


class EmulatedDownlink(Generic[T]):
    """Everything that enters one node: items go in when their last byte has come to it, and come out when it is in."""

    def __init__(self, down_bytes_per_s: float) -> None:
        self._down_bytes_per_s = down_bytes_per_s
        self._free_at_s = float("-inf")
        self._gaps: deque[tuple[float, float]] = deque(maxlen=_GAPS)
        """When the downlink was idle. A message uses the part of these times in which it came: else a short message
        in the midst of a long one would seem to have kept the long one waiting."""
        self._waiting: deque[tuple[T, float]] = deque()
        """BULK messages that may still have to wait for PIPELINE, each with the time that it needs."""
        self._entering: list[tuple[float, int, int, Lane, T]] = []
        self._in_order_s = dict.fromkeys(Lane, float("-inf"))
        self._numbers = count()

    def push(self, lane: Lane, item: T, n_bytes: int, now_s: float, bytes_per_s: float = float("inf")) -> None:
        """Take `item`, whose last byte is here and which came at `bytes_per_s`. `now_s` must not go backwards."""
        at_s = self.enter(lane, item, n_bytes, now_s, bytes_per_s)
        if at_s is not None:
            self._keep(lane, item, at_s)

    def enter(self, lane: Lane, item: T, n_bytes: int, now_s: float, bytes_per_s: float) -> float | None:
        """Push an item as `push` does, unless neither it nor another has to wait: then return when it is in.

        No pop gives such an item back. In all other cases None is returned. This serves callers with a calendar.
        """
        in_turn = bool(self._waiting)
        if in_turn:
            self._serve(now_s)
        needs_s = n_bytes / self._down_bytes_per_s
        began_s = now_s - n_bytes / bytes_per_s
        if lane is Lane.BULK and self._waiting:
            self._waiting.append((item, needs_s))
            return None
        if needs_s > 0 and self._gaps and self._gaps[-1][1] > began_s:
            needs_s = self._in_gaps(began_s, needs_s)
        if needs_s > 0:
            free_at_s = self._free_at_s
            if free_at_s > now_s and lane is Lane.BULK:
                self._waiting.append((item, needs_s))
                return None
            if began_s > free_at_s:
                self._gaps.append((free_at_s, began_s))
                free_at_s = began_s
            free_at_s = self._free_at_s = free_at_s + needs_s
            now_s = max(now_s, free_at_s)
        at_s = self._in_order(lane, now_s)
        if not in_turn:
            return at_s
        self._keep(lane, item, at_s)
        return None

    def pop_arrived(self, now_s: float) -> list[tuple[float, Lane, T]]:
        """Return what is in by `now_s`, with the time at which it was, in the order of these times."""
        if self._waiting:
            self._serve(now_s)
        arrived = []
        while self._entering and self._entering[0][0] <= now_s:
            at_s, _, _, lane, item = heappop(self._entering)
            arrived.append((at_s, lane, item))
        return arrived

    def pop_begun(self, now_s: float) -> list[tuple[float, Lane, T]]:
        """Return what has begun to enter by `now_s`, in any order, with the time at which it is in.

        For callers with a calendar.
        """
        if self._waiting:
            self._serve(now_s)
        begun = [(at_s, lane, item) for at_s, _, _, lane, item in self._entering]
        self._entering.clear()
        return begun

    def next_begin_s(self) -> float | None:
        """Return when pop_begun() can next return something; None when nothing waits."""
        return self._free_at_s if self._waiting else None

    def next_due_s(self) -> float | None:
        """Return when pop_arrived() can next do something, in seconds; None when empty."""
        due_s = self._entering[0][0] if self._entering else None
        if self._waiting:
            due_s = self._free_at_s if due_s is None else min(due_s, self._free_at_s)
        return due_s

    def change(self, now_s: float, down_bytes_per_s: float) -> None:
        """Change the rate from now on, also for what waits."""
        self._serve(now_s)
        slower = self._down_bytes_per_s / down_bytes_per_s
        self._waiting = deque((item, needs_s * slower) for item, needs_s in self._waiting)
        self._down_bytes_per_s = down_bytes_per_s

    def _serve(self, now_s: float) -> None:
        """Let the BULK messages begin whose turn has come."""
        while self._waiting and self._free_at_s <= now_s:
            item, needs_s = self._waiting.popleft()
            self._free_at_s += needs_s
            self._keep(Lane.BULK, item, self._in_order(Lane.BULK, self._free_at_s))

    def _in_gaps(self, began_s: float, needs_s: float) -> float:
        """Use up the idle times since `began_s`, the oldest first, and return the time that is still needed.

        There is at least one idle time.
        """
        gaps = self._gaps
        later: list[tuple[float, float]] = []
        while gaps and gaps[-1][1] > began_s:
            later.append(gaps.pop())
        for start_s, end_s in reversed(later):
            from_s = max(start_s, began_s)
            until_s = from_s + min(needs_s, end_s - from_s)
            needs_s -= min(needs_s, end_s - from_s)
            if start_s < from_s:
                gaps.append((start_s, from_s))
            if until_s < end_s:
                gaps.append((until_s, end_s))
        return needs_s

    def _in_order(self, lane: Lane, at_s: float) -> float:
        """Return when a message is in that could be in at `at_s`: not before those of its lane that came before it."""
        if at_s < self._in_order_s[lane]:
            return self._in_order_s[lane]
        self._in_order_s[lane] = at_s
        return at_s

    def _keep(self, lane: Lane, item: T, at_s: float) -> None:
        heappush(self._entering, (at_s, RANK[lane], next(self._numbers), lane, item))


def _first_in_turn(links: Iterable[_Link[T]]) -> tuple[Lane, _Link[T]]:
    """Return the lane and the link whose message leaves next: PIPELINE first, within a lane what was pushed first."""
    best: tuple[int, int, Lane, _Link[T]] | None = None
    for link in links:
        for lane, waiting in link.waiting.items():
            if waiting:
                turn = (RANK[lane], waiting[0][0], lane, link)
                best = turn if best is None or turn[:2] < best[:2] else best
                break
    assert best is not None
    return best[2], best[3]
