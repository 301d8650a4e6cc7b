"""How many samples a fleet makes where rounds of averaging take about as long as they are apart, found by walking.

A stage contributes to a round after the update in which the round was opened, not at once, and to the next one only
when all stages of all clusters have been through the one before (with `max_lag` 1). So where a round takes nearly as
long as the fleet needs for its samples, clusters wait although it would fit: whoever is in the middle of an update when
a round opens holds up those who have just ended theirs. How long depends on how the clusters' updates lie to each
other, and they lie as earlier waits have left them. `walked_samples_per_s` therefore follows some dozens of rounds,
update by update, by the rules of a run (ring_allreduce/rounds/owner.py, ravnest/pipeline/update_boundary.py). Pipelines
are not walked: an update takes a cluster its usual time, and the first stage is at its end `delay_s` after the last
one. What a round takes of links that pipelines fill is not seen here (steady_state.py).

Which rhythm they settle into may depend on whether a round is known just before or just after an update ends, and no
prediction is exact to that. So it is walked twice, once with rounds that count from the next update on where they open
in the last part (LATE) of one, and the slower rhythm is what is predicted: else a search finds the plans that are
predicted too fast.

In: each cluster's times, and a round's. Out: samples/s. tests/unit/ravnest/simulator/test_rounds_starved.py holds it to
the simulator.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from heapq import heapify, heappop, heappush

CONTROL_S = 0.005
"""What a message between the driver and a stage is taken to need, as in a simulation."""

ROUNDS = 48
"""So many rounds are walked; the first quarter of them does not count."""

LATE = 0.1
"""What opens in this last part of an update may be known before it ends, or not."""

MOST_UPDATES = 4000
"""A walk ends after so many updates of all clusters together."""

REMEMBERED = 4096
"""The number of walks whose results this process caches."""


@dataclass(frozen=True)
class ClusterTimes:
    """The seconds of a cluster's update, and from its end at the last stage to its end at the first one."""

    update_s: float
    delay_s: float


@dataclass(frozen=True)
class RoundRules:
    """How a round is opened, and what it takes: `update_samples` of one update of a cluster, `round_samples` of the
    fleet between rounds, `max_lag`; `sending_s`, `later_s` and `way_s` of its rings as in steady_state.RoundTimes.
    """

    update_samples: int
    round_samples: int
    max_lag: int
    sending_s: float
    later_s: float
    way_s: float


_UPDATED, _TOLD, _COMMITTED = range(3)


class _Walk:
    def __init__(self, clusters: Sequence[ClusterTimes], rules: RoundRules, late: float) -> None:
        self._clusters, self._rules, self._late = clusters, rules, late
        count = len(clusters)
        self._events = [(one.update_s * (1 + (i + 0.5) / count), _UPDATED, i) for i, one in enumerate(clusters)]
        heapify(self._events)
        self._total, self._next_at, self._committed = 0, rules.round_samples, 0
        self._opened_s: list[float] = []
        self._given = [0] * count
        """By cluster: the last round that it has contributed to."""
        self._waits_s: list[float | None] = [None] * count
        """By cluster: since when it waits for a merge; None for one that trains."""
        self._came = [0] * (ROUNDS + rules.max_lag + 2)
        """By round: how many clusters have contributed."""
        self._ready_s = [0.0] * len(self._came)
        self._sent_s = 0.0
        self.marks: list[tuple[float, int]] = []
        """The moment of each commit, and the samples that the driver knew of then."""

    def go(self) -> None:
        updates = 0
        while updates < MOST_UPDATES and len(self.marks) < ROUNDS:
            at_s, kind, number = heappop(self._events)
            if kind == _UPDATED:
                updates += 1
                self._updated(at_s, number)
            elif kind == _TOLD:
                self._total += self._rules.update_samples
                self._open(at_s)
            else:
                self._commit(at_s, number)

    def _updated(self, at_s: float, cluster: int) -> None:
        times = self._clusters[cluster]
        heappush(self._events, (at_s + times.delay_s + CONTROL_S, _TOLD, cluster))
        due = self._given[cluster] + 1
        if len(self._opened_s) >= due and self._opened_s[due - 1] <= at_s - self._late * times.update_s:
            if due - self._rules.max_lag > self._committed:
                self._waits_s[cluster] = at_s
                return
            self._contribute(cluster, at_s + times.delay_s)
        heappush(self._events, (at_s + times.update_s, _UPDATED, cluster))

    def _open(self, at_s: float) -> None:
        every = self._rules.round_samples
        while self._total >= self._next_at and len(self._opened_s) - self._committed <= self._rules.max_lag:
            self._opened_s.append(at_s + CONTROL_S)
            self._next_at = (self._total // every + 1) * every

    def _contribute(self, cluster: int, at_s: float) -> None:
        self._given[cluster] += 1
        number, rules = self._given[cluster], self._rules
        self._came[number] += 1
        self._ready_s[number] = max(self._ready_s[number], at_s)
        if self._came[number] == len(self._clusters):
            self._sent_s = max(self._ready_s[number], self._sent_s) + rules.sending_s
            done_s = max(self._sent_s + rules.later_s, self._ready_s[number] + rules.way_s)
            heappush(self._events, (done_s + 2 * CONTROL_S, _COMMITTED, number))

    def _commit(self, at_s: float, number: int) -> None:
        self._committed = number
        self.marks.append((at_s, self._total))
        self._open(at_s)
        for cluster, since_s in enumerate(self._waits_s):
            if since_s is not None and self._given[cluster] + 1 - self._rules.max_lag <= number:
                self._waits_s[cluster] = None
                times = self._clusters[cluster]
                self._contribute(cluster, max(at_s, since_s + times.delay_s))
                heappush(self._events, (at_s + times.update_s, _UPDATED, cluster))


@lru_cache(maxsize=REMEMBERED)
def walked_samples_per_s(clusters: tuple[ClusterTimes, ...], rules: RoundRules) -> float | None:
    """Return the samples/s of the fleet, or None where too few rounds were walked to say. Results are cached, since
    many of the plans that a search compares differ in nothing that counts here.
    """
    found = [_made(clusters, rules, late) for late in (0.0, LATE)]
    return min((made for made in found if made is not None), default=None)


def _made(clusters: tuple[ClusterTimes, ...], rules: RoundRules, late: float) -> float | None:
    walk = _Walk(clusters, rules, late)
    walk.go()
    first = len(walk.marks) // 4
    if len(walk.marks) - first < 4:
        return None
    (from_s, before), (until_s, after) = walk.marks[first], walk.marks[-1]
    return (after - before) / (until_s - from_s)
