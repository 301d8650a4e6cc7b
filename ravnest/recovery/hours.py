"""Which nodes the clock takes out of a run and lets in again, by their `hours` in nodes.yaml. Pure.

In: the nodes of a plan, and the time of day. Out: the nodes that are to leave with notice, so that they have handed on
what they made when their hours end, and those whose hours have begun.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from cluster_planner import Node, hours_to

DRAIN_S = 120.0
"""So long before its hours end a node is asked to leave: what its cluster has made has to be averaged until then."""

_HOUR_S = 3600.0
_ALL_DAY = (1 << 24) - 1


@dataclass(frozen=True)
class HourChange:
    """A node is to leave the run, or may run stages again, for this reason."""

    kind: Literal["leave", "join"]
    node: str
    why: str


class HourWatch:
    """Compares the hours of nodes with the clock. At first every node counts as there."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        self._hours: dict[str, int] = {}
        self.know(nodes)
        self._away: set[str] = set()

    def know(self, nodes: Iterable[Node]) -> None:
        """These nodes are in the run now, some of which may have come since."""
        for node in nodes:
            if node.hours != _ALL_DAY:
                self._hours[node.name] = node.hours

    @property
    def away(self) -> frozenset[str]:
        """The nodes that were asked to leave, and whose hours have not begun again."""
        return frozenset(self._away)

    def turn(self, utc_s: float) -> list[HourChange]:
        """Return what has changed since the last call. `utc_s`: seconds since a midnight in UTC."""
        out: list[HourChange] = []
        for node, hours in self._hours.items():
            there = _there(hours, utc_s) and _there(hours, utc_s + DRAIN_S)
            said = f"its hours are {hours_to(hours)} UTC"
            if not there and node not in self._away:
                self._away.add(node)
                out.append(HourChange("leave", node, said))
            elif there and node in self._away:
                self._away.discard(node)
                out.append(HourChange("join", node, said))
        return out


def _there(hours: int, utc_s: float) -> bool:
    return bool(hours >> int(utc_s // _HOUR_S) % 24 & 1)
