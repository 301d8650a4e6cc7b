"""What came of a simulated run, and how it is told to programs. Plain data, pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from cluster_planner import Plan


@dataclass(frozen=True)
class SimulatedStage:
    """Where one stage's time went, from its start to the drain."""

    name: str
    node: str
    utilisation: float
    """The part of the steady state in which it computed."""
    seconds: Mapping[str, float]
    """Until the run drained: computing by kind, waiting by cause (both ravnest.pipeline.time_ledger's), and
    "stalled"."""
    late_s: float
    """What jitter added to (below 0: took from) its computing."""
    staleness: Mapping[int, int]
    """How many gradients had which staleness, in updates."""


@dataclass(frozen=True)
class LostNode:
    """A stall beyond the deadline at which a run, which is fail-stop, gives a node up and ends."""

    node: str
    silent_from_s: float
    silent_s: float
    given_up_s: float


@dataclass(frozen=True)
class SimulatedRun:
    """Times are virtual seconds since the start, but for `wall_s`. `*_per_s` are samples."""

    seed: int
    samples: int
    drain_s: float
    """When training was told to stop."""
    end_s: float
    """When the last round was merged everywhere."""
    steady_from_s: float
    """The steady state: from here to the drain."""
    samples_per_s: float
    """In the steady state."""
    overall_samples_per_s: float
    """From the start to the end."""
    goodput_per_s: float
    """Samples whose effect is in the anchor at the end, over the time from start to end. As long as nothing is lost,
    and a simulated run waits for whatever stalls, it is `overall_samples_per_s`: the last round merges everything."""
    clusters: Mapping[str, float]
    """Samples/s of each in the steady state."""
    stages: tuple[SimulatedStage, ...]
    staleness: Mapping[int, int]
    """Of all stages."""
    rounds: int
    averaging_s: float | None
    """From a round's opening to its commit, the mean but for the last, which waits for the drain. None: no round."""
    longest_averaging_s: float | None
    rounds_s: tuple[tuple[float, float], ...]
    """When each was opened and committed, in order."""
    pipeline_bytes: int
    averaging_bytes: int
    lost: Mapping[str, float]
    """Of all stages' time until the drain, the part that was no computing, by cause."""
    stalls: int
    first_lost: LostNode | None
    """The figures are of a run that waits; one that does not would have ended here."""
    over_time: tuple[tuple[float, float], ...]
    """(end of a span of equal length, samples/s in it) from the start to the drain."""
    events: int
    wall_s: float
    ended: str = ""
    """Why it ended where nobody said when, in words."""
    too_short: str | None = None
    """Why it has shown no steady state, in words; None where it has."""
    unreached: tuple[str, ...] = ()
    """What of the scenario would have happened after its end, in words."""

    @property
    def events_per_minute(self) -> float:
        return 60.0 * self.events / self.wall_s if self.wall_s > 0 else 0.0


def as_plain(simulated: SimulatedRun) -> dict[str, object]:
    """The result as one JSON document."""
    return {**asdict(simulated), "events_per_minute": simulated.events_per_minute}


LEAST_UPDATES = 10
"""Of the slowest cluster. Rates are counted in whole updates, so one update is up to a tenth of the rate."""


def too_short(result: SimulatedRun, plan: Plan) -> str | None:
    """Why the run has shown no steady state, in words; None where it has."""
    seconds = result.drain_s - result.steady_from_s
    per_update = plan.workload.micro_batch * plan.workload.update_every
    updates = {name: round(rate * seconds / per_update) for name, rate in result.clusters.items()}
    slowest = min(updates, key=lambda name: updates[name])
    if seconds <= 0 or updates[slowest] < LEAST_UPDATES:
        return f"it holds {updates[slowest]} updates of {slowest}, and takes {LEAST_UPDATES}"
    if len(plan.clusters) > 1 and result.rounds < 2:
        return "no round of averaging was complete before the end of training"
    return None
