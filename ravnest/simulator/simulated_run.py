"""The figures of a simulated run, whether it has shown a steady state, and its form as a JSON document. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from cluster_planner import Plan


@dataclass(frozen=True)
class SimulatedStage:
    """The shares of one stage's time by what it did, from its start to the drain."""

    name: str
    node: str
    utilisation: float
    """The share of the steady state in which it computed."""
    seconds: Mapping[str, float]
    """Seconds until the run drained: of computing by kind and of waiting by cause (the states of
    ravnest.pipeline.time_ledger), under "stalled", and under "away" while its cluster was lost."""
    late_s: float
    """Seconds that jitter added to its computing; below 0 where it took some away."""
    staleness: Mapping[int, int]
    """How many gradients had which staleness, in updates."""


@dataclass
class Absence:
    """A cluster that is lost, or has left with notice, and may train again."""

    cluster: str
    node: str
    silent_from_s: float
    lost_s: float
    made: int
    """Samples that it had made when it was lost."""
    with_notice: bool = False
    back_s: float | None = None
    nodes: tuple[str, ...] = ()
    """Those on which it trains again."""
    averaged: int | None = None
    """Samples of it that were averaged when it trained again, or that it had handed on as well when it left; None while
    neither is."""
    handed: int = 0
    """Samples that others had handed to it and that no round had yet."""

    def away_s(self, until_s: float) -> float:
        """Return for how long it was away until then."""
        return max(0.0, (until_s if self.back_s is None else min(self.back_s, until_s)) - self.lost_s)


@dataclass(frozen=True)
class LostCluster:
    """A cluster that left the run, because a node of it died, stood still past the deadline of a run, or left."""

    cluster: str
    node: str
    silent_from_s: float
    lost_s: float
    """When the driver noticed it, and the others went on without the cluster."""
    samples: int
    """Those that the cluster had made, or taken of others, and that were in no average. They do not count."""
    back_s: float | None
    """When it trained again, from the anchor; None where it never did."""
    nodes: tuple[str, ...] = ()
    """Those on which it trained again."""
    with_notice: bool = False
    """Whether it left because a node of it gave notice: then nothing is lost."""


@dataclass(frozen=True)
class BegunAnew:
    """No cluster was left, or other clusters make more, and the run began again from its last checkpoint."""

    lost_s: float
    """When training ended."""
    began_s: float
    samples: int
    """Those that were averaged after the checkpoint. They do not count."""
    planned_anew: bool
    """Whether other clusters were planned, for the nodes that were there."""
    on_purpose: bool = False
    """Whether clusters were left, and others make so much more that it was stopped for them."""


@dataclass(frozen=True)
class SimulatedRun:
    """What came of a simulated run.

    Times are virtual seconds since the start, except `wall_s`. Rates (`*_per_s`) are of samples.
    """

    seed: int
    samples: int
    drain_s: float
    """When training was told to stop."""
    end_s: float
    """When the last round was merged everywhere."""
    steady_from_s: float
    """The steady state lasts from here to the drain."""
    samples_per_s: float
    """Of the fleet, in the steady state."""
    overall_samples_per_s: float
    """Of the fleet, from the start to the end."""
    goodput_per_s: float
    """Samples whose effect is in the anchor at the end, over the time from the start to the end. It equals
    `overall_samples_per_s` as long as nothing is lost, because the last round merges everything."""
    clusters: Mapping[str, float]
    """Samples per second of each cluster in the steady state."""
    stages: tuple[SimulatedStage, ...]
    staleness: Mapping[int, int]
    """How many gradients of all stages had which staleness, in updates."""
    rounds: int
    """How many rounds were committed."""
    averaging_s: float | None
    """From a round's opening to its commit: the mean of all rounds except the last, which waits for the drain. None
    without rounds."""
    longest_averaging_s: float | None
    """The longest of the same."""
    rounds_s: tuple[tuple[float, float], ...]
    """When each round was opened and committed, in order."""
    pipeline_bytes: int
    averaging_bytes: int
    lost: Mapping[str, float]
    """The share of all stages' time until the drain that was not computing, by cause."""
    stalls: int
    """How many stalls happened."""
    clusters_lost: tuple[LostCluster, ...]
    """In the order in which they were lost."""
    begun_anew: tuple[BegunAnew, ...]
    """Each time that no cluster was left that trained, and the run went on. What is told by cluster and stage is of
    what came after the last of them."""
    over_time: tuple[tuple[float, float], ...]
    """(end of a span of equal length, samples/s in it) from the start to the drain."""
    events: int
    """How many events of the virtual clock were simulated."""
    wall_s: float
    """How long the simulation took, by this machine's clock."""
    ended: str = ""
    """The reason for its end, in words, where the caller gave none."""
    too_short: str | None = None
    """The reason why it has shown no steady state, in words; None where it has shown one."""
    unreached: tuple[str, ...] = ()
    """What of the scenario would have happened after its end, in words."""

    stopped_early: bool = False
    """Whether it was told to stop before its end."""

    @property
    def events_per_minute(self) -> float:
        """Events in a minute of this machine's time."""
        return 60.0 * self.events / self.wall_s if self.wall_s > 0 else 0.0


def as_plain(simulated: SimulatedRun) -> dict[str, object]:
    """Return the result as one JSON document."""
    return {**asdict(simulated), "events_per_minute": simulated.events_per_minute}


LEAST_UPDATES = 10
"""How many updates of the slowest cluster a steady state needs. Rates are counted in whole updates, so that one update
is then at most a tenth of the rate."""


LEAST_ROUNDS = 10
"""How many rounds of averaging it needs: clusters do not wait for the first ones."""


def too_short(result: SimulatedRun, plan: Plan) -> str | None:
    """Return the reason why the run has shown no steady state, in words; None where it has shown one."""
    seconds = result.drain_s - result.steady_from_s
    per_update = plan.workload.micro_batch * plan.workload.update_every
    updates = {name: round(rate * seconds / per_update) for name, rate in result.clusters.items()}
    slowest = min(updates, key=lambda name: updates[name])
    if seconds <= 0 or updates[slowest] < LEAST_UPDATES:
        return f"it holds {updates[slowest]} updates of {slowest}, and takes {LEAST_UPDATES}"
    if len(plan.clusters) > 1 and result.rounds < 2:
        return "no round of averaging was complete before the end of training"
    if len(plan.clusters) > 1 and result.rounds < LEAST_ROUNDS:
        return f"it holds {result.rounds} rounds of averaging, and takes {LEAST_ROUNDS}"
    return None
