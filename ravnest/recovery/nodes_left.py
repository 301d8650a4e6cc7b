"""Which nodes have left a run with notice, or were shut out of it, and are not back. Pure.

In: who leaves and why, who is back, and the nodes that are alive. Out: the nodes on which something may be started. It
belongs to the run and not to a session: a run that begins again starts nothing on a machine that is about to go.
"""

from collections.abc import Collection, Mapping


class NodesLeft:
    """The nodes that have left. One of them is back when somebody says so, or when it was gone in between."""

    def __init__(self) -> None:
        self._left: set[str] = set()
        self._off_hours: set[str] = set()
        """Those of them that the clock took out: only it, or a user, lets them in again."""
        self._noticed: set[str] = set()
        """Those of them whose system asked their processes to end, and nobody else did."""
        self._liars: dict[str, str] = {}
        """Those of them that were shut out, and why: only a user lets them in again."""

    @property
    def names(self) -> frozenset[str]:
        """All of them."""
        return frozenset(self._left)

    @property
    def noticed(self) -> frozenset[str]:
        """Those of them that have only given notice: their systems asked their processes to end, and nobody else."""
        return frozenset(self._noticed)

    @property
    def liars(self) -> Mapping[str, str]:
        """Why each node was shut out, by its name."""
        return self._liars

    def shut_out(self, node: str, reason: str) -> None:
        """A node leaves because its cluster was found to lie."""
        self.leave(node)
        self._liars[node] = reason

    def leave(self, node: str, *, by_clock: bool = False, noticed: bool = False) -> None:
        """A node leaves: a user asks for it, its hours end (`by_clock`), or its system has given notice (`noticed`)."""
        asked_before = node in self._left - self._noticed
        self._left.add(node)
        self._off_hours |= {node} if by_clock else set()
        if noticed and not asked_before:
            self._noticed.add(node)
        else:
            self._noticed.discard(node)

    def take(self, names: Collection[str], noticed: Collection[str]) -> None:
        """These had left, of which some had only given notice, when another driver wrote it down."""
        for node in names:
            self.leave(node, noticed=node in noticed)

    def back(self, node: str) -> None:
        """A node is back."""
        for each in (self._left, self._off_hours, self._noticed):
            each.discard(node)
        self._liars.pop(node, None)

    def look(self, alive: Collection[str]) -> None:
        """These nodes are alive: one that left, was switched off, and is there again later is back then."""
        self._left &= {*alive, *self._off_hours, *self._liars}
        self._noticed &= self._left

    def without(self, alive: Collection[str]) -> set[str]:
        """Those of the nodes that are alive on which something may be started."""
        return set(alive) - self._left

    def if_need_be(self, alive: Collection[str]) -> set[str]:
        """The same, with those that have given notice and are still alive: for a run that has no others."""
        return set(alive) - (self._left - self._noticed)
