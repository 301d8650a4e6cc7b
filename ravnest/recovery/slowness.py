"""Which nodes have become slow and stay so: their stages compute longer for an update than they used to. Pure.

In: the seconds that a stage has computed so far, with each of its updates. Out: by how many times a node is slower than
it was, when that begins and when it ends. A stage is compared with itself: how fast a machine really is, the plan may
not know. Waiting does not count, so that neighbours of a slow node are not slow.

    usual = median of the first USUAL updates        now = median of those of the last STAYS_S seconds, FEWEST at least

and with the others: where all have become slow by as much, as on a machine that they share, none is.
"""

from collections import deque
from dataclasses import dataclass, field
from statistics import median

USUAL = 20
"""So many updates say what is usual; a few before them, when memory and caches are new, do not count."""

NEW = 3
STAYS_S = 60.0
"""For so long a node has to be slow before anything is done about it."""

FEWEST = 5
SLOW = 2.0
"""A node is slow that takes so many times as long as usual,"""

WELL = 1.4
"""and not any more when it takes less than so many times as long."""

MOST_KEPT = 1024

COMPUTES = ("forward", "backward", "weights", "update")
"""The states of a stage's ledger in which its machine works."""


@dataclass(frozen=True)
class NodeSlow:
    """The node of `stage` takes so many `times` as long as it used to; 1: it does not any more."""

    stage: str
    node: str
    times: float


@dataclass
class _Worked:
    node: str
    update: int
    spent_s: float
    seen: int = 0
    first: list[float] = field(default_factory=list)
    recent: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=MOST_KEPT))
    """(moment, seconds of an update) of the last STAYS_S and a little more."""
    times: float = 1.0
    """How many times as long as usual it takes now."""
    slow: bool = False
    other: int = 0
    """How many updates in a row have said that it is not as `slow` as it is taken for."""


class Slowness:
    """Compares each stage with itself."""

    def __init__(self) -> None:
        self._stages: dict[str, _Worked] = {}

    def worked(self, stage: str, node: str, update: int, spent_s: float, now_s: float) -> NodeSlow | None:
        """A stage on `node` has made this update, and has computed for so many seconds in all. Returns what is new."""
        known = self._stages.get(stage)
        if known is None or known.node != node or spent_s < known.spent_s or update <= known.update:
            if known is None or known.node != node or spent_s < known.spent_s:  # another process has this name
                self._stages[stage] = _Worked(node, update, spent_s)
            return None
        took_s = (spent_s - known.spent_s) / (update - known.update)
        known.update, known.spent_s, known.seen = update, spent_s, known.seen + 1
        if known.seen <= NEW:
            return None
        if len(known.first) < USUAL:
            known.first.append(took_s)
            return None
        known.recent.append((now_s, took_s))
        while len(known.recent) > FEWEST and known.recent[1][0] <= now_s - STAYS_S:
            known.recent.popleft()
        usual_s, lasts = median(known.first), now_s - known.recent[0][0] >= STAYS_S
        if not lasts or len(known.recent) < FEWEST or usual_s <= 0:
            return None
        known.times = median(each for _, each in known.recent) / usual_s
        others = [each.times for each in self._stages.values() if each is not known]
        times = known.times / max(1.0, median(others)) if others else known.times
        known.other += 1
        if known.slow == (times >= (WELL if known.slow else SLOW)):
            known.other = 0
        if known.other == FEWEST:  # not at once: others may tell a moment later that they have become slow too
            known.slow, known.other = not known.slow, 0
            return NodeSlow(stage, node, round(times, 1) if known.slow else 1.0)
        return None
