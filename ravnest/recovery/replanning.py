"""When it pays to stop a run that trains, plan anew for the nodes that are there, and go on from its checkpoint. Pure.

In: what the clusters make, what the best plan for the nodes would make, and the time. Out: whether to do it now. Nobody
knows how long nodes stay, so nothing is forecast: the run is planned anew as soon as what was forgone since the last
plan, in samples, is what the stop costs. Whatever the nodes do, that loses at most twice what the best choice would
have lost (the rule for renting or buying).
"""

from __future__ import annotations

WORTHWHILE = 1.05
"""The best plan makes so many times the samples, or the run is left alone."""


class Replanning:
    """Adds up what a run forgoes."""

    def __init__(self, pause_s: float) -> None:
        """`pause_s`: for how long nobody trains when a run is planned anew."""
        self._pause_s = pause_s
        self._forgone = 0.0
        self._last_s: float | None = None
        self._before = 0.0

    def pays(self, making_per_s: float, best_per_s: float, now_s: float, rest_s: float) -> bool:
        """Return whether to plan anew now.

        Arguments:
            making_per_s: the samples/s that the clusters make which train.
            best_per_s: what the best plan would make for the nodes that are there.
            rest_s: for how long the run goes on.
        """
        if self._last_s is not None:
            self._forgone += self._before * (now_s - self._last_s)
        better = best_per_s > WORTHWHILE * making_per_s
        self._last_s, self._before = now_s, best_per_s - making_per_s if better else 0.0
        if not better:
            self._forgone = 0.0
            return False
        costs = best_per_s * self._pause_s
        return self._forgone >= costs and (best_per_s - making_per_s) * rest_s > costs
