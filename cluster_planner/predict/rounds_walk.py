"""How many samples a fleet makes where rounds of averaging take about as long as they are apart, found by walking.

A stage contributes to a round after the update in which the round was opened, not at once, and to the next one only
when all stages of all clusters have been through the one before (with `max_lag` 1). So where a round takes nearly as
long as the fleet needs for its samples, clusters wait although it would fit: whoever is in the middle of an update when
a round opens holds up those who have just ended theirs. How long depends on how the clusters' updates lie to each
other, and they lie as earlier waits have left them. `walked_samples_per_s` therefore follows some dozens of rounds,
update by update, by the rules of a run (ring_allreduce/rounds/owner.py, ravnest/pipeline/update_boundary.py). Pipelines
are not walked: an update takes a cluster its usual time, and the first stage is at its end `delay_s` after the last
one. Pipelines go first on links. So what a round takes of a link that a pipeline fills in part goes on at the rate that
is left while the cluster trains, and at the full one while it waits.

Which rhythm they settle into may depend on whether a round is known just before or just after an update ends, and no
prediction is exact to that. So it is walked three times (RHYTHMS): rounds that open in an update's last part (LATE)
count from its end on, or from the next one's, or in turn. The slowest rhythm is what is predicted: else a search finds
the plans that are predicted too fast.

In: each cluster's times, and a round's. Out: samples/s. tests/unit/ravnest/simulator/test_rounds_starved.py holds it to
the simulator.
"""

from collections import deque
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

RHYTHMS = ((0.0, 0.0), (LATE, LATE), (0.0, LATE))
"""By whether a round's number is even or odd: where in an update it may open at the latest to count from its end on."""

MOST_UPDATES = 4000
"""A walk ends after so many updates of all clusters together."""

REMEMBERED = 4096
"""The number of walks whose results this process caches."""


@dataclass(frozen=True, order=True)
class FilledLink:
    """A link of a cluster's host that its pipeline fills in part: the seconds that a round takes of it by itself, and
    the part of the time, above 0, that the pipeline leaves of it.
    """

    round_s: float
    left: float


@dataclass(frozen=True)
class ClusterTimes:
    """The seconds of a cluster's update, and from its end at the last stage to its end at the first one; and the links
    on which a round takes longer than RoundRules.sending_s as long as the cluster trains.
    """

    update_s: float
    delay_s: float
    filled: tuple[FilledLink, ...] = ()


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


_UPDATED, _TOLD, _READY, _SENT, _COMMITTED = range(5)


class _Walk:
    def __init__(self, clusters: Sequence[ClusterTimes], rules: RoundRules, late: tuple[float, float]) -> None:
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
        self._links: list[tuple[int | None, FilledLink]] = [(None, FilledLink(rules.sending_s, 1.0))]
        self._links += [(cluster, link) for cluster, one in enumerate(clusters) for link in one.filled]
        """All on which a round's sending may end last, with the cluster whose pipeline fills it."""
        self._left_s: list[float] = []
        """By link: for how long the round that is being sent would still take it by itself."""
        self._looked_s = 0.0
        """When that was so."""
        self._sending = 0
        """The round that is being sent; 0: none."""
        self._to_send: deque[int] = deque()
        self._looks = 0
        """How often it was said when a round is sent: only what was said last counts."""
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
            elif kind == _READY:
                self._to_send.append(number)
                self._send_next(at_s)
            elif kind == _SENT:
                if number == self._looks:
                    self._sent(at_s)
            else:
                self._commit(at_s, number)

    def _updated(self, at_s: float, cluster: int) -> None:
        times = self._clusters[cluster]
        heappush(self._events, (at_s + times.delay_s + CONTROL_S, _TOLD, cluster))
        due = self._given[cluster] + 1
        if len(self._opened_s) >= due and self._opened_s[due - 1] <= at_s - self._late[due % 2] * times.update_s:
            if due - self._rules.max_lag > self._committed:
                self._send_on(at_s)
                self._waits_s[cluster] = at_s
                self._say_when_sent(at_s)
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
        number = self._given[cluster]
        self._came[number] += 1
        self._ready_s[number] = max(self._ready_s[number], at_s)
        if self._came[number] == len(self._clusters):
            heappush(self._events, (self._ready_s[number], _READY, number))

    def _send_next(self, at_s: float) -> None:
        if self._to_send and not self._sending:
            self._sending = self._to_send.popleft()
            self._left_s, self._looked_s = [link.round_s for _, link in self._links], at_s
            self._say_when_sent(at_s)

    def _send_on(self, at_s: float) -> None:
        """Count what was sent until now."""
        since_s, self._looked_s = at_s - self._looked_s, at_s
        # Not strict: before the first round nothing is left to send.
        self._left_s = [left_s - since_s * rate for left_s, rate in zip(self._left_s, self._rates(), strict=False)]

    def _say_when_sent(self, at_s: float) -> None:
        if self._sending:
            self._looks += 1
            longest_s = max(left_s / rate for left_s, rate in zip(self._left_s, self._rates(), strict=True))
            heappush(self._events, (at_s + max(0.0, longest_s), _SENT, self._looks))

    def _rates(self) -> list[float]:
        """Return, of each link, the part of the time that is left to rounds now."""
        waits_s = self._waits_s
        return [1.0 if of is None or waits_s[of] is not None else link.left for of, link in self._links]

    def _sent(self, at_s: float) -> None:
        number, rules = self._sending, self._rules
        done_s = max(at_s + rules.later_s, self._ready_s[number] + rules.way_s)
        heappush(self._events, (done_s + 2 * CONTROL_S, _COMMITTED, number))
        self._sending = 0
        self._send_next(at_s)

    def _commit(self, at_s: float, number: int) -> None:
        self._send_on(at_s)
        self._committed = number
        self.marks.append((at_s, self._total))
        self._open(at_s)
        for cluster, since_s in enumerate(self._waits_s):
            if since_s is not None and self._given[cluster] + 1 - self._rules.max_lag <= number:
                self._waits_s[cluster] = None
                times = self._clusters[cluster]
                self._contribute(cluster, max(at_s, since_s + times.delay_s))
                heappush(self._events, (at_s + times.update_s, _UPDATED, cluster))
        self._say_when_sent(at_s)


@lru_cache(maxsize=REMEMBERED)
def walked_samples_per_s(clusters: tuple[ClusterTimes, ...], rules: RoundRules) -> float | None:
    """Return the samples/s of the fleet, or None where too few rounds were walked to say. Results are cached, since
    many of the plans that a search compares differ in nothing that counts here.
    """
    found = [_made(clusters, rules, late) for late in RHYTHMS]
    return min((made for made in found if made is not None), default=None)


def _made(clusters: tuple[ClusterTimes, ...], rules: RoundRules, late: tuple[float, float]) -> float | None:
    walk = _Walk(clusters, rules, late)
    walk.go()
    first = len(walk.marks) // 4
    if len(walk.marks) - first < 4:
        return None
    (from_s, before), (until_s, after) = walk.marks[first], walk.marks[-1]
    return (after - before) / (until_s - from_s)
