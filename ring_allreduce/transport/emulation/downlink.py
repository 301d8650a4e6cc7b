"""When a message that has come to an imitated node's downlink is in: arithmetic on times, no clock, no socket.

A message takes the downlink for n / down, beginning with its first byte, and is in no sooner than its last byte came.
The downlink carries one message at a time, so it never carries more than its rate. PIPELINE goes before BULK that has
not begun; within a lane the order is kept. Nothing holds a sender back: what is too much waits here.
"""

from collections import deque
from heapq import heappop, heappush
from itertools import count
from typing import Generic, TypeVar

from ring_allreduce.transport.emulation.links import RANK
from ring_allreduce.transport.stats import Lane

T = TypeVar("T")

_GAPS = 16
"""Idle times that are remembered. What is forgotten makes the downlink slower, never faster."""


class EmulatedDownlink(Generic[T]):
    """All that enters one node: items go in when their last byte comes to it and come out when it is through."""

    def __init__(self, down_bytes_per_s: float) -> None:
        self._down_bytes_per_s = down_bytes_per_s
        self._free_at_s = float("-inf")
        self._gaps: deque[tuple[float, float]] = deque(maxlen=_GAPS)
        """When it was idle: a message uses what of these it came in. (A short one in the midst of a long one would
        else seem to have kept the long one waiting.)"""
        self._waiting: deque[tuple[T, float]] = deque()
        """Of BULK: what may still have to wait for PIPELINE, with the time that it needs."""
        self._entering: list[tuple[float, int, int, Lane, T]] = []
        self._in_order_s = dict.fromkeys(Lane, float("-inf"))
        self._numbers = count()

    def push(self, lane: Lane, item: T, n_bytes: int, now_s: float, bytes_per_s: float = float("inf")) -> None:
        """The last byte of `item` is here; it came at `bytes_per_s`. `now_s` must not go backwards."""
        at_s = self.enter(lane, item, n_bytes, now_s, bytes_per_s)
        if at_s is not None:
            self._keep(lane, item, at_s)

    def enter(self, lane: Lane, item: T, n_bytes: int, now_s: float, bytes_per_s: float) -> float | None:
        """As `push`, for who keeps a calendar: when the item is in, where nothing waits and it need not either; no pop
        gives it back then. Else None."""
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
        """What is in by `now_s`, with the moment at which it was, in the order of these."""
        if self._waiting:
            self._serve(now_s)
        arrived = []
        while self._entering and self._entering[0][0] <= now_s:
            at_s, _, _, lane, item = heappop(self._entering)
            arrived.append((at_s, lane, item))
        return arrived

    def pop_begun(self, now_s: float) -> list[tuple[float, Lane, T]]:
        """What has begun to enter by `now_s`, in any order, with the moment at which it is in: for who keeps a
        calendar."""
        if self._waiting:
            self._serve(now_s)
        begun = [(at_s, lane, item) for at_s, _, _, lane, item in self._entering]
        self._entering.clear()
        return begun

    def next_begin_s(self) -> float | None:
        """When pop_begun() can next do something; None when nothing waits."""
        return self._free_at_s if self._waiting else None

    def next_due_s(self) -> float | None:
        """When pop_arrived() can next do something; None when empty."""
        due_s = self._entering[0][0] if self._entering else None
        if self._waiting:
            due_s = self._free_at_s if due_s is None else min(due_s, self._free_at_s)
        return due_s

    def change(self, now_s: float, down_bytes_per_s: float) -> None:
        """From now on the rate is another, also for what waits."""
        self._serve(now_s)
        slower = self._down_bytes_per_s / down_bytes_per_s
        self._waiting = deque((item, needs_s * slower) for item, needs_s in self._waiting)
        self._down_bytes_per_s = down_bytes_per_s

    def _serve(self, now_s: float) -> None:
        """Let BULK begin whose turn has come."""
        while self._waiting and self._free_at_s <= now_s:
            item, needs_s = self._waiting.popleft()
            self._free_at_s += needs_s
            self._keep(Lane.BULK, item, self._in_order(Lane.BULK, self._free_at_s))

    def _in_gaps(self, began_s: float, needs_s: float) -> float:
        """Use the idle times since `began_s`, of which there is one, the oldest first; what is still needed."""
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
        """When a message is in that could be at `at_s`: not before those of its lane that came before it."""
        if at_s < self._in_order_s[lane]:
            return self._in_order_s[lane]
        self._in_order_s[lane] = at_s
        return at_s

    def _keep(self, lane: Lane, item: T, at_s: float) -> None:
        heappush(self._entering, (at_s, RANK[lane], next(self._numbers), lane, item))
