"""The requests that wait at a host until they are computed: those of many callers in one batch. Pure.

Requests with the same key (the same expert and the same work) are computed together. A batch is due when its samples
are `most_samples`, or when its oldest request has waited for `most_wait_s`. Of several that are due the one with the
oldest request comes first, so that no expert starves. What waits is bounded, and what does not fit is refused.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Item = TypeVar("Item")


@dataclass(frozen=True)
class _Waiting(Generic[Item]):
    item: Item
    samples: int
    came_s: float


class RequestQueue(Generic[Key, Item]):
    """Items under keys."""

    def __init__(self, *, most_samples: int, most_wait_s: float, most_waiting: int) -> None:
        """`most_waiting`: samples that may wait in all."""
        self._most_samples = most_samples
        self._most_wait_s = most_wait_s
        self._most_waiting = most_waiting
        self._queues: dict[Key, deque[_Waiting[Item]]] = {}
        self._samples: dict[Key, int] = {}
        self.waiting = 0
        """Samples that wait."""

    def put(self, key: Key, item: Item, samples: int, now_s: float) -> bool:
        """Let an item of so many samples wait; False when there is no room for it."""
        if self.waiting + samples > self._most_waiting:
            return False
        self._queues.setdefault(key, deque()).append(_Waiting(item, samples, now_s))
        self._samples[key] = self._samples.get(key, 0) + samples
        self.waiting += samples
        return True

    def due_s(self) -> float | None:
        """When `take` has something, at the latest; None when nothing waits."""
        return min((self._due_s(key) for key in self._queues), default=None)

    def take(self, now_s: float) -> tuple[Key, list[Item]] | None:
        """The batch that is due, or None. It has no more than `most_samples` unless one item alone has more."""
        due = [
            (queue[0].came_s, number)
            for number, (key, queue) in enumerate(self._queues.items())
            if self._due_s(key) <= now_s
        ]
        if not due:
            return None
        key = list(self._queues)[min(due)[1]]
        queue, samples = self._queues[key], 0
        items: list[Item] = []
        while queue and (not items or samples + queue[0].samples <= self._most_samples):
            one = queue.popleft()
            items.append(one.item)
            samples += one.samples
        self.waiting -= samples
        self._samples[key] -= samples
        if not queue:
            del self._queues[key], self._samples[key]
        return key, items

    def drop(self, key: Key) -> list[Item]:
        """Take out all that waits under a key."""
        queue = self._queues.pop(key, deque())
        self.waiting -= self._samples.pop(key, 0)
        return [one.item for one in queue]

    def pending(self) -> list[Key]:
        """Under which something waits."""
        return list(self._queues)

    def _due_s(self, key: Key) -> float:
        full = self._samples[key] >= self._most_samples
        return -1.0 if full else self._queues[key][0].came_s + self._most_wait_s
