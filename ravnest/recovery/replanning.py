"""When it pays to stop a run that trains, plan anew for the nodes that are there, and go on from its checkpoint. Pure.

In: what the clusters make, what the best plan for the nodes would make, the time, and for how long nodes stay on
average, where that is stated. Out: whether to do it now. With R the samples/s of the best plan, r those of the clusters
as they will be when all that is under way has begun, and p the pause:

    nodes state mtbf_hours    (R - r) · 1 / Σ 1/mtbf > R · p      the next change is expected after 1 / Σ 1/mtbf
    nobody knows              what was forgone since the last plan is R · p

The second loses at most twice what the best choice would have lost, whatever the nodes do (the rule for renting or
buying).
"""

from __future__ import annotations

from collections.abc import Iterable

from cluster_planner import Node

WORTHWHILE = 1.05
"""The best plan makes so many times the samples, or the run is left alone."""


def lasts_s(nodes: Iterable[Node]) -> float | None:
    """Return after how many seconds the first of these nodes is expected to go; None where one does not state its
    mtbf_hours.
    """
    per_s = [0.0 if node.mtbf_s is None else 1.0 / node.mtbf_s for node in nodes]
    return 1.0 / sum(per_s) if per_s and all(per_s) else None


class Replanning:
    """Adds up what a run forgoes."""

    def __init__(self, pause_s: float) -> None:
        """`pause_s`: for how long nobody trains when a run is planned anew."""
        self._pause_s = pause_s
        self._forgone = 0.0
        self._last_s: float | None = None
        self._before = 0.0

    def pays(
        self, making_per_s: float, best_per_s: float, now_s: float, rest_s: float, lasts_s: float | None = None
    ) -> bool:
        """Return whether to plan anew now.

        Arguments:
            making_per_s: the samples/s that the clusters make which train, or begin to.
            best_per_s: what the best plan would make for the nodes that are there.
            rest_s: for how long the run goes on.
            lasts_s: after how long nodes are expected to change; None: nobody knows.
        """
        if self._last_s is not None:
            self._forgone += self._before * (now_s - self._last_s)
        better = best_per_s > WORTHWHILE * making_per_s
        self._last_s, self._before = now_s, best_per_s - making_per_s if better else 0.0
        if not better:
            self._forgone = 0.0
            return False
        costs = best_per_s * self._pause_s
        if lasts_s is not None:
            return (best_per_s - making_per_s) * min(lasts_s, rest_s) > costs
        return self._forgone >= costs and (best_per_s - making_per_s) * rest_s > costs
