"""How fast all clusters run together, when rounds are averaged over the uplinks that pipelines fill.

On an uplink the pipeline's lane goes first. So a stage whose uplink its pipeline fills sends next to nothing of a
round, until its cluster comes to its lag limit and waits, as all clusters do for that round. Then links are free, and
the round goes on at their full rate. With R the samples/s without averaging, E the samples of a round, and of each
host's uplink (downlink) the part p of the time that pipelines fill it and the seconds a that a round takes of it:

    opened    t = E / R                     E = average_every, or one update of every cluster if that is more
    interval  I = max( t,  B + h of every host in a ring,  v + h,  w,  slowest update ),  B = t·p + a, with max_lag 1
              I = max( t,  B, (B + h)/max_lag,  v, (v + h)/max_lag,  w/max_lag,  slowest update ),  with more

In a ring each hop waits for the one before. Where a does not fit into t·(1 − p), B is t + g·(1 − t·(1 − p) / a) if that
is more: g is what is left of the ring when that link lets it go on (round_traffic.py).

So R·t / I is made. v is for how long the link of one pair sends, h how much later the last of all flows has come, w a
chunk's way around. With a larger `max_lag` links send the next round meanwhile, so nothing is lost where one round's
last bytes are on their way. A round holds an update of each cluster at least: hence the last term, and E. Clusters stop
after an update, one earlier than another. Where they wait at a host with `max_lag` 1, its cluster is taken to stop
(C − 1) / (2·(C + 1)) of its update after t, the last of C moments spread evenly about it, as far as that does not
double the wait.

h and w contain the two messages by which the driver ends a round (TOLD_S). A fleet that makes many rounds' samples
in that time makes many before it hears that one is open, so that it waits less often than for each E samples.

Where a round takes about t, within an update, clusters wait for the ends of each other's updates as well, which is
walked (rounds_walk.py).

Everything is arrays over all stages, so that ten thousand cost little more than ten. Two effects are left out: how long
a pipeline's message waits behind a chunk of averaging that is leaving, and that uplinks are free for a moment after
each wait.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cluster_planner.inputs.model_costs import Workload
from cluster_planner.inputs.spans import Floats
from cluster_planner.predict.rounds_walk import CONTROL_S, ClusterTimes, FilledLink, RoundRules, walked_samples_per_s
from cluster_planner.predict.schedule_walk import SHORTEST_S

WAITS_ABOUT = 0.18
"""Where a round takes exactly as long as the fleet needs for its samples, rounds are further apart by about this part
of an update.
"""

TOLD_S = 2 * CONTROL_S
"""What two messages between the driver and a stage take: so much later than a round is due clusters hear that it is
open, and so much later than it has ended they hear that.
"""

WAITS_AT_MOST = 4
"""Clusters that make many rounds' samples in TOLD_S wait for about so many rounds before they train as long again."""

LEAST_LEFT = 1e-3
"""Pipelines are taken to leave at least so much of a link to rounds."""


@dataclass(frozen=True)
class Occupancy:
    """The seconds per micro-batch for which each stage computes, sends its slowest flow and uses its host's links.

    Each array has one entry per stage.
    """

    compute_s: Floats
    send_s: Floats
    up_s: Floats
    down_s: Floats

    @property
    def most(self) -> Floats:
        return np.maximum(np.maximum(self.compute_s, self.send_s), np.maximum(self.up_s, self.down_s))


@dataclass(frozen=True)
class RoundTimes:
    """What rounds take beside the hosts' links, in seconds.

    `sending_s` is what the busiest link of a pair takes, `last_hop_s` how much later the last of a round has come by
    latency, and `way_s` a chunk's way around. `stalls_s`: by how much later still, where hops wait for large blocks.
    """

    sending_s: float
    last_hop_s: float
    way_s: float
    stalls_s: float = 0.0

    @property
    def later_s(self) -> float:
        """How much later than the last is sent it has come."""
        return self.last_hop_s + self.stalls_s

    @property
    def committed_s(self) -> float:
        """How much later than the last is sent all know that it has come everywhere, by the driver's word."""
        return self.later_s + TOLD_S

    def takes_s(self, sending_s: float) -> float:
        """Return the seconds until all know that, from the moment at which the busiest link begins to send."""
        return max(sending_s + self.committed_s, self.way_s + TOLD_S)


@dataclass(frozen=True)
class Pace:
    """How fast the clusters run, and how far apart rounds are.

    `rates` are the samples/s of each cluster. `interval_s` is the time from one round to the next; it is infinite
    without rounds. Where clusters wait for averaging, `waits_at` is the number of the stage whose host has too little
    room for it, and `joins_last` that of the cluster whose updates are too long; both are None where a ring by itself
    takes too long.
    """

    rates: Floats
    interval_s: float
    waits: bool = False
    waits_at: int | None = None
    joins_last: int | None = None


@dataclass(frozen=True)
class _RoundLinks:
    """Uplinks and downlinks of stages' hosts: for how long a round by itself fills each, what is left of the stage's
    rings when a link lets them go on, which is no less, which part of the time the pipelines leave of the link, and the
    number of the stage's cluster, of so many.
    """

    round_s: Floats
    held_s: Floats
    left: Floats
    cluster: NDArray[np.int64]
    clusters: int

    def filled(self, sending_s: float) -> list[tuple[FilledLink, ...]]:
        """Return, by cluster, those on which a round takes longer than `sending_s` as long as the cluster trains: by
        then they hold their rings up.
        """
        found: list[list[FilledLink]] = [[] for _ in range(self.clusters)]
        for at in np.flatnonzero(self.round_s > sending_s * self.left):
            held_s = float(self.held_s[at])
            found[self.cluster[at]].append(FilledLink(held_s, held_s * float(self.left[at] / self.round_s[at])))
        return [tuple(sorted(set(links))) for links in found]


@dataclass(frozen=True)
class PipelineArrays:
    """All clusters' stages one after the other. Bytes are each stage's own: per micro-batch, and per round of
    averaging. `held_up_s` and `held_down_s`: what is left of the stage's slowest ring when its uplink, or its downlink,
    lets it go on (round_traffic.py). `host`: stages with the same number share an uplink and a downlink. `first`: where
    each cluster's stages begin; the last three have one entry per cluster.
    """

    compute_s: Floats
    send_s: Floats
    up_bytes: Floats
    down_bytes: Floats
    averaged_up: Floats
    averaged_down: Floats
    held_up_s: Floats
    held_down_s: Floats
    up_bytes_per_s: Floats
    down_bytes_per_s: Floats
    host: NDArray[np.int64]
    first: NDArray[np.int64]
    round_trip_s: Floats
    flushed_s: Floats
    window: NDArray[np.int64]

    def through_host(self, own: Floats) -> Floats:
        """Return, for each stage, the sum over its host."""
        return np.bincount(self.host, weights=own).astype(np.float64)[self.host]

    def occupancy(self) -> Occupancy:
        """Occupancy of each stage while nothing is averaged and all clusters of a host are as fast as each other."""
        up_s = self.through_host(self.up_bytes) / self.up_bytes_per_s
        down_s = self.through_host(self.down_bytes) / self.down_bytes_per_s
        return Occupancy(self.compute_s, self.send_s, up_s, down_s)

    def periods_s(self, work: Workload) -> Floats:
        """Return the seconds per micro-batch of each cluster while none waits: stage_times.period_s, and what a flush
        costs.
        """
        bottleneck = np.maximum.reduceat(self.occupancy().most, self.first)
        others = (work.update_every - 1) * bottleneck if work.update_every > 1 else 0.0
        admitted = (others + self.round_trip_s) / work.largest_window
        waiting = np.maximum(self.round_trip_s / self.window, np.maximum(admitted, self.flushed_s))
        return np.maximum(np.maximum(bottleneck, waiting), SHORTEST_S)

    def pace(self, work: Workload, alone: RoundTimes | None, least_s: float = 0.0) -> Pace:
        """Return how fast the whole fleet runs. `alone` is None where nothing is averaged. `least_s`: rounds are at
        least so far apart, as `walked_s` says.
        """
        periods = self.periods_s(work)
        rates = work.micro_batch / periods
        if alone is None:
            return Pace(rates, float("inf"))
        updates = work.update_every * periods
        opened_s = work.round_samples(len(rates)) / float(rates.sum())
        sends = self.through_host(self.averaged_up + self.averaged_down) > 0
        busy_s = self._busy_s(periods, opened_s)
        if work.max_lag == 1:
            later = (len(rates) - 1) / (2 * (len(rates) + 1))
            stopping_s = self._busy_s(periods, opened_s + later * updates) - busy_s
            idle_s = alone.committed_s + np.clip(busy_s - opened_s, 0.0, stopping_s)
        else:  # the next round is sent meanwhile
            idle_s = np.maximum(0.0, (busy_s + alone.committed_s) / work.max_lag - busy_s)
        busy_s += np.where(sends, idle_s, 0.0)
        at, late = int(busy_s.argmax()), int(updates.argmax())
        by_itself = max(alone.sending_s, alone.takes_s(alone.sending_s) / work.max_lag)
        starved_s = max(by_itself, float(busy_s[at]))
        if work.average_every > len(rates) * work.update_every * work.micro_batch:  # else each update opens a round
            takes_s = alone.takes_s(max(alone.sending_s, float(self._busy_s(periods, 0.0).max())))
            starved_s = min(starved_s, opened_s * (1 + WAITS_AT_MOST * takes_s / TOLD_S))
        interval_s = max(opened_s, starved_s, float(updates[late]), least_s)
        if interval_s <= opened_s * (1 + 1e-9):
            return Pace(rates, opened_s)
        waits_at = at if busy_s[at] >= max(by_itself, updates[late], opened_s) else None
        joins_last = late if waits_at is None and updates[late] > by_itself else None
        return Pace(rates * (opened_s / interval_s), interval_s, True, waits_at, joins_last)

    def walked_s(self, work: Workload, alone: RoundTimes | None, *, roughly: bool = False) -> float:
        """Return how far apart rounds are by a walk of rounds (rounds_walk.py); 0 where they take so much longer, or
        shorter, than the fleet needs for their samples that nobody waits for the end of another's update.

        `roughly`: not by a walk, but by a curve that lies near the walks of fleets of unequal clusters.
        """
        if alone is None:
            return 0.0
        periods = self.periods_s(work)
        updates_s, rate = work.update_every * periods, work.micro_batch / periods
        opened_s = work.round_samples(len(periods)) / float(rate.sum())
        links = self._round_links(periods)
        sending_s = max(alone.sending_s, float(links.round_s.max()))
        delays_s = self._delays_s()
        near_s = float((updates_s + delays_s).max())
        late = (links.round_s > 0) & (links.round_s / links.left + alone.committed_s > opened_s - near_s)
        filled_s = opened_s * (1 - links.left)
        waited_s = np.where(late, _carried_s(filled_s, opened_s, links.round_s, links.held_s), 0.0)
        takes_s = alone.takes_s(max(sending_s, float(waited_s.max())))
        if abs(takes_s - opened_s) > near_s:
            return 0.0
        if roughly and len(periods) == 1:
            return 0.0  # the curve is one of several clusters that hold each other up
        if roughly:
            if work.max_lag > 1:  # the next round is sent meanwhile
                takes_s = max(sending_s, float(waited_s.max()), takes_s / work.max_lag)
            apart_s, about_s = (takes_s - opened_s) / 2, WAITS_ABOUT * float(updates_s.mean())
            return (takes_s + opened_s) / 2 + math.hypot(apart_s, about_s)
        samples = work.update_every * work.micro_batch
        rules = RoundRules(
            samples, round(work.round_samples(len(periods))), work.max_lag, sending_s, alone.later_s, alone.way_s
        )
        # In this order, so that it does not count which number a cluster has.
        each = sorted(zip(updates_s.tolist(), delays_s.tolist(), links.filled(sending_s), strict=True))
        made = walked_samples_per_s(tuple(ClusterTimes(*one) for one in each), rules)
        return 0.0 if made is None else rules.round_samples / made

    def loaded_s(self, work: Workload, alone: RoundTimes, pace: Pace) -> float | None:
        """Return how long a round takes from its opening to its commit while pipelines train: each cluster ends its
        update, and then links carry the round at the rate that pipelines leave. None where clusters wait for rounds:
        these are opened before the ones ahead of them are through.
        """
        if pace.waits:
            return None
        periods, clusters = self.periods_s(work), len(self.first)
        joined_s = float((work.update_every * periods * clusters / (clusters + 1) + self._delays_s()).max())
        links = self._round_links(periods)
        return joined_s + alone.takes_s(max(alone.sending_s, float((links.round_s / links.left).max())))

    def _delays_s(self) -> Floats:
        """Return by how much later each cluster's first stage ends an update than its last one."""
        return np.where(np.diff(self.first, append=len(self.host)) > 1, self.round_trip_s / 2, 0.0)

    def _round_links(self, periods_s: Floats) -> "_RoundLinks":
        """Return what a round takes of the uplinks and downlinks of stages while the pipelines have these periods."""
        stages = np.diff(self.first, append=len(self.host))
        periods_s = np.repeat(periods_s, stages)
        up_s = self.through_host(self.up_bytes / periods_s) / self.up_bytes_per_s
        down_s = self.through_host(self.down_bytes / periods_s) / self.down_bytes_per_s
        round_s = np.concatenate(
            [
                self.through_host(self.averaged_up) / self.up_bytes_per_s,
                self.through_host(self.averaged_down) / self.down_bytes_per_s,
            ]
        )
        return _RoundLinks(
            round_s,
            np.maximum(np.concatenate([self.held_up_s, self.held_down_s]), round_s),
            np.maximum(1 - np.concatenate([up_s, down_s]), LEAST_LEFT),
            np.tile(np.repeat(np.arange(len(stages)), stages), 2),
            len(stages),
        )

    def _busy_s(self, periods_s: Floats, trained_s: Floats | float) -> Floats:
        """Return how long each stage's host sends, or receives, what its cluster does in `trained_s`, and one round."""
        stages = np.diff(self.first, append=len(self.host))
        micro_batches = np.repeat(trained_s / periods_s, stages)
        trained_s = np.repeat(np.broadcast_to(trained_s, periods_s.shape), stages)

        def carried_s(own: Floats, averaged: Floats, held_s: Floats, rate: Floats) -> Floats:
            filled_s, round_s = self.through_host(own * micro_batches) / rate, self.through_host(averaged) / rate
            return _carried_s(filled_s, trained_s, round_s, np.maximum(held_s, round_s))

        up = carried_s(self.up_bytes, self.averaged_up, self.held_up_s, self.up_bytes_per_s)
        return np.maximum(up, carried_s(self.down_bytes, self.averaged_down, self.held_down_s, self.down_bytes_per_s))


def _carried_s(filled_s: Floats, trained_s: Floats | float, round_s: Floats, held_s: Floats) -> Floats:
    """Return for how long links carry what pipelines send in `trained_s`, which takes `filled_s` of it, and one round.

    `round_s`: what a round takes of a link by itself; `held_s`: what is left of its rings when the link lets them go
    on. Each hop waits for the one before. So where pipelines leave a link too little, its rings get no further.
    """
    left_s = np.maximum(trained_s - filled_s, 0.0)
    fits = left_s >= round_s
    part = np.where(fits, 1.0, left_s / np.where(fits, 1.0, round_s))
    rings_s = np.where(fits, 0.0, trained_s + held_s * (1 - part))
    return np.maximum(filled_s + round_s, rings_s)
