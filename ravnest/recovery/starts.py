"""How often clusters were started within a while: what kills one each time would kill it again. Pure.

In: starts, the nodes that are alive, and the work of each cluster that is in the anchor. Out: how many starts tell
against a cluster. Two kinds do not. One of a node that is gone: it was the machine. And those before the cluster gave
something to a round: it gets somewhere between its losses, whatever they are.
"""

from collections.abc import Iterable, Mapping

MOST_STARTS = 5
"""A cluster is started at most so often within WINDOW_S."""
WINDOW_S = 600.0
AT_ONE_NODE = 3
"""A cluster does without a node, if it can, of which a stage has ended it so many times in a row."""


class Starts:
    """The starts of all clusters of a run."""

    def __init__(self) -> None:
        self._of: dict[str, list[tuple[float, frozenset[str]]]] = {}
        """By cluster: when it was started, and on which nodes."""
        self._given: dict[str, int] = {}
        """By cluster that was started: its work that was in the anchor when that was heard of first."""
        self._ends: dict[str, list[str]] = {}
        """By cluster: the nodes of which stages have ended it, since nothing told against it."""
        self._alive: frozenset[str] = frozenset()

    def look(self, alive: Iterable[str]) -> None:
        """These nodes are alive."""
        self._alive = frozenset(alive)

    def began(self, cluster: str, now_s: float, nodes: Iterable[str]) -> None:
        """The cluster is started on these nodes, all of them alive."""
        self._of.setdefault(cluster, []).append((now_s, frozenset(nodes)))
        self._given.pop(cluster, None)

    def undo(self, cluster: str) -> None:
        """The last start was none."""
        self._of[cluster].pop()

    def forgive(self, cluster: str) -> None:
        """Nothing tells against the cluster any more, nor against a node of it."""
        self._of.pop(cluster, None)
        self._ends.pop(cluster, None)

    def ended(self, cluster: str, node: str) -> None:
        """A stage on the node has ended the cluster, or a try to start it; empty: nobody knows which one."""
        self._ends.setdefault(cluster, []).append(node)

    def ends_at(self, cluster: str) -> str | None:
        """The node of which a stage has ended the cluster so many times in a row; None: there is none."""
        last = self._ends.get(cluster, [])[-AT_ONE_NODE:]
        return last[0] if len(last) == AT_ONE_NODE and last[0] and len(set(last)) == 1 else None

    def averaged(self, given: Mapping[str, int]) -> None:
        """A round is committed: `given` is by cluster its work that is in the anchor, in any unit."""
        for cluster in list(self._of):
            if given.get(cluster, 0) > self._given.setdefault(cluster, given.get(cluster, 0)):
                self.forgive(cluster)

    def against(self, cluster: str, now_s: float) -> int:
        """Return how many starts of the last while tell against the cluster."""
        recent = [each for each in self._of.get(cluster, ()) if now_s - each[0] < WINDOW_S]
        if recent:
            self._of[cluster] = recent
        return sum(nodes <= self._alive for _, nodes in recent)

    def too_many(self, cluster: str, now_s: float) -> str | None:
        """Return in words that the cluster was started too often; None where it may be started again."""
        count = self.against(cluster, now_s)
        return None if count < MOST_STARTS else f"it was started {count} times within {WINDOW_S / 60:.0f} min"
