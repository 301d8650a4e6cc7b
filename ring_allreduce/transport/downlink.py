"""When a message that has come to an imitated node's downlink is in: arithmetic on times, no clock, no socket.

A message takes the downlink for n / down, beginning with its first byte, and is in no sooner than its last byte came.
The downlink carries one message at a time, so it never carries more than its rate. PIPELINE goes before BULK that has
not begun; within a lane the order is kept. Nothing holds a sender back: what is too much waits here.
"""

from collections import deque
from heapq import heappop, heappush
from itertools import count
from typing import Generic, TypeVar

from ring_allreduce.transport.emulation import RANK
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
        if self._waiting:
            self._serve(now_s)
        needs_s = n_bytes / self._down_bytes_per_s
        began_s = now_s - n_bytes / bytes_per_s
        if lane is Lane.BULK and self._waiting:
            self._waiting.append((item, needs_s))
            return
        needs_s = self._in_gaps(began_s, needs_s)
        if lane is Lane.BULK and needs_s > 0 and self._free_at_s > now_s:
            self._waiting.append((item, needs_s))
            return
        if needs_s > 0:
            if began_s > self._free_at_s:
                self._gaps.append((self._free_at_s, began_s))
                self._free_at_s = began_s
            self._free_at_s += needs_s
            now_s = max(now_s, self._free_at_s)
        self._enter(lane, item, now_s)

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
            self._enter(Lane.BULK, item, self._free_at_s)

    def _in_gaps(self, began_s: float, needs_s: float) -> float:
        """Use the idle times since `began_s`; what is still needed."""
        if needs_s <= 0 or not self._gaps or self._gaps[-1][1] <= began_s:
            return needs_s
        kept: list[tuple[float, float]] = []
        for start_s, end_s in self._gaps:
            from_s = max(start_s, began_s)
            used_s = min(needs_s, max(0.0, end_s - from_s))
            needs_s -= used_s
            kept += [part for part in ((start_s, min(from_s, end_s)), (from_s + used_s, end_s)) if part[0] < part[1]]
        self._gaps = deque(kept, maxlen=_GAPS)
        return needs_s

    def _enter(self, lane: Lane, item: T, at_s: float) -> None:
        at_s = self._in_order_s[lane] = max(at_s, self._in_order_s[lane])
        heappush(self._entering, (at_s, RANK[lane], next(self._numbers), lane, item))
