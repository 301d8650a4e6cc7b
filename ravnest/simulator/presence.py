"""Which nodes of a simulated run are there: they die, leave with notice, and come back. Pure.

In: what becomes of nodes, by moment. Out: which of them can run stages at each moment.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Literal

from ring_allreduce.rounds import SILENCE_FLOOR_S

NOTICE_S = 30.0
"""How long before it goes a machine says so, where nothing else is stated: what rented ones give at the least."""


@dataclass(frozen=True)
class NodeChange:
    """What becomes of `node` at the moment `at_s`: it is gone, its processes end, it gives notice that it leaves, or it
    is there (again)."""

    at_s: float
    node: str
    kind: Literal["gone", "ended", "notice", "back"]
    noticed_after_s: float = SILENCE_FLOOR_S
    """How long nobody knows that it is gone, or that its processes have ended."""
    until_s: float = math.inf
    """Of a node that is gone: when it is back."""
    why: str = ""
    """Why it leaves, or is back, in words."""


class Presence:
    """The nodes of a fleet that are there now."""

    def __init__(self, nodes: Iterable[str], absent: Collection[str]) -> None:
        """`absent`: those that are not there at first."""
        self._back_s = {node: math.inf if node in absent else 0.0 for node in nodes}
        self.now_s = 0.0
        """Up to when changes were taken."""

    @property
    def coming(self) -> list[float]:
        """When nodes are back of which that is known."""
        return [back_s for back_s in self._back_s.values() if 0.0 < back_s < math.inf]

    def take(self, change: NodeChange) -> None:
        """A node is gone, or there again."""
        self.now_s = change.at_s
        if change.kind == "gone":
            self._back_s[change.node] = change.until_s
        elif change.kind == "back":
            self._back_s[change.node] = 0.0

    def alive(self, now_s: float) -> set[str]:
        """The nodes that are there."""
        return {node for node, back_s in self._back_s.items() if back_s <= now_s}


def absent_at_first(changes: Iterable[NodeChange]) -> set[str]:
    """The nodes of which the first that is known is that they come, and later than at 0 s."""
    first: dict[str, NodeChange] = {}
    for change in sorted(changes, key=lambda each: each.at_s):
        first.setdefault(change.node, change)
    return {node for node, change in first.items() if change.kind == "back" and change.at_s > 0}
