"""What a rehearsal shows: what the plan predicted beside what the run achieved, in the plan's own time. Pure.

In: a plan, and the result of its rehearsed run. Out: a `Rehearsal`, which compares the fleet, each cluster and each
stage, and says whether this machine was fast enough to imitate the plan. The module also fixes how long a rehearsal
goes on.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from cluster_planner import Plan
from ravnest.driver.observe.report import RunLimit, RunResult, StageFigures, TimeShares
from ravnest.errors import InvalidInput
from ravnest.formatting import json_value
from ravnest.pipeline import stage_name

UPDATES, ROUNDS = 24, 4
"""How many updates of the slowest cluster, and how many rounds of averaging, a rehearsal waits for."""
LONGEST_S = 180.0
"""The longest that it waits for them, in seconds of this machine's clock."""
MOST_LATE = 0.02
"""The share by which this machine may be late: of a stage's imitated computing, of a micro-batch on links, and of a
stage's time in snapshots and merges, where being too early counts too."""
_SPARE = 0.8
"""The suggested speed, as a share of the one at which the latest stage would just be in time."""
LEAST_SPEED = 0.1
"""Slower than that nobody waits for a rehearsal: its few updates would take more than ten times as long."""


def check_extent(speed: float, samples: int | None, minutes: float | None, *, whole: bool) -> None:
    """Raises InvalidInput for a speed or an end that makes no sense."""
    if not (math.isfinite(speed) and speed > 0):
        raise InvalidInput(f"must be a finite number above 0, not {speed:g}", key="speed")
    if samples is not None and samples < 1:
        raise InvalidInput(f"must be at least 1, not {samples}", key="samples")
    if minutes is not None and not (math.isfinite(minutes) and minutes > 0):
        raise InvalidInput(f"must be a finite number above 0, not {minutes:g}", key="minutes")
    given = {"samples": samples is not None, "minutes": minutes is not None, "whole": whole}
    if sum(given.values()) > 1:
        named = " and ".join(name for name, there in given.items() if there)
        raise InvalidInput(f"{named} say when to end: give one of them", key="samples")


@dataclass(frozen=True)
class Extent:
    """How long a rehearsal goes on.

    `expected_s` is the time by this machine's clock, if the plan is right; None where it is unknown.
    """

    limit: RunLimit
    expected_s: float | None
    cut_short: bool = False
    """Whether it ends before UPDATES and ROUNDS are reached."""


def extent(
    plan: Plan, speed: float, *, samples: int | None = None, minutes: float | None = None, whole: bool = False
) -> Extent:
    """Return how long a rehearsal of `plan` goes on at a speed.

    At most one of `samples` (of the fleet), `minutes` (of this machine's time) and `whole` (until the job's own end) is
    given. Without any, the constants above say how long.
    """
    rate = plan.predicted.samples_per_s * speed
    if whole:
        stop_minutes, stop_samples = _stop(plan, "minutes"), _stop(plan, "samples")
        seconds = None if stop_minutes is None else 60.0 * stop_minutes / speed
        return Extent(RunLimit(), seconds if stop_samples is None else stop_samples / rate)
    if minutes is not None:
        return Extent(RunLimit(seconds=60.0 * minutes), 60.0 * minutes)
    if samples is not None:
        return Extent(RunLimit(samples=samples), samples / rate)
    work = plan.workload
    slowest = min(cluster.samples_per_s for cluster in plan.predicted.clusters)
    share = slowest / sum(cluster.samples_per_s for cluster in plan.predicted.clusters)
    wanted = max(UPDATES * work.micro_batch * work.update_every / share, ROUNDS * work.average_every)
    wanted_s = wanted / rate
    return Extent(RunLimit(math.ceil(wanted), LONGEST_S), min(wanted_s, LONGEST_S), wanted_s > LONGEST_S)


def _stop(plan: Plan, unit: str) -> float | None:
    """Return the end of the plan's job in this unit; None where it is said in another."""
    stop = plan.job.get("stop")
    until = stop.get(unit) if isinstance(stop, Mapping) else None
    return float(until) if isinstance(until, int | float) else None


@dataclass(frozen=True)
class Compared:
    """One figure as predicted and as achieved; None where it is not known."""

    predicted: float | None
    achieved: float | None

    @property
    def ratio(self) -> float | None:
        """Achieved over predicted."""
        if self.achieved is None or not self.predicted:
            return None
        return self.achieved / self.predicted


@dataclass(frozen=True)
class StageRehearsal:
    """One stage. In the steady state, `step_s` is in seconds per micro-batch, and `busy` the share of time in which the
    stage computes."""

    stage: str
    node: str
    step_s: Compared
    busy: Compared
    memory_bytes: Compared
    """The most that its tensors took, without the process itself. It is predicted for the window that the run used."""
    waiting: Mapping[str, float]
    """By cause: the share of time in which it waited."""
    other: Mapping[str, float]
    """The shares of time that went into averaging (snapshots, merges), evaluation, and handing over between threads."""
    mean_staleness: float | None
    max_staleness: int | None
    late_share: float | None
    """How late this machine was, as a share of the imitated computing."""


@dataclass(frozen=True)
class ClusterRehearsal:
    """One cluster. `busy` is that of its bottleneck, the stage with the most computing."""

    name: str
    samples_per_s: Compared
    step_s: Compared
    bottleneck: str
    busy: Compared
    mean_staleness: float | None
    max_staleness: int | None
    stages: tuple[StageRehearsal, ...]
    window: Compared
    """Micro-batches in flight: as planned, and the most that it was tuned to. Memory is compared for the latter."""


@dataclass(frozen=True)
class Rehearsal:
    """Predicted against achieved. Times and rates are the plan's, whatever the `speed` of the rehearsal."""

    speed: float
    steady: bool
    """Whether every stage came to a steady state; where not, what it achieved is not known."""
    most_late_share: float | None
    late_stages: tuple[str, ...]
    suggested_speed: float | None
    """The speed at which this machine might keep up, where it did not. None where it did, and where it would take a
    speed below LEAST_SPEED: such a plan is simulated, or rehearsed elsewhere."""
    samples_per_s: Compared
    averaging_s: Compared
    """Seconds of a round. The prediction is for links that the round has to itself; what is achieved lasts from its
    opening to its commit, and so waits for the next update of each cluster too. Both are None with a single cluster."""
    rounds: int
    staleness_bound: int
    clusters: tuple[ClusterRehearsal, ...]
    run: RunResult
    """What came of the run itself, in this machine's time."""
    links_late_s: float | None = None
    """By how many seconds messages came later than they should: the mean of the stage where it was most. None where no
    links were imitated."""

    merges_late_share: float = 0.0
    """Snapshots and merges take as long as they do on this machine, whatever the speed. This is the largest share of a
    stage's time that they took beyond what they would have taken at the plan's own speed; it is below 0 where the
    rehearsal is slower than that."""

    @property
    def stages(self) -> tuple[StageRehearsal, ...]:
        """The stages of all clusters, in the order of the plan."""
        return tuple(stage for cluster in self.clusters for stage in cluster.stages)

    @property
    def unfaithful_in(self) -> tuple[str, ...]:
        """What of the plan was imitated worse than MOST_LATE allows: of "computing", "links" and "merges"."""
        worse = {
            "computing": bool(self.late_stages),
            "links": self.links_late_share > MOST_LATE,
            "merges": abs(self.merges_late_share) > MOST_LATE,
        }
        return tuple(what for what, is_worse in worse.items() if is_worse)

    @property
    def faithful(self) -> bool | None:
        """Whether this machine imitated the plan as well as MOST_LATE asks. None where it is not known, because no
        stage has come to a computation."""
        if self.unfaithful_in:
            return False
        return None if self.most_late_share is None else True

    @property
    def links_late_share(self) -> float:
        """`links_late_s` as a share of the shortest planned time of a micro-batch of any cluster."""
        return (self.links_late_s or 0.0) / min(cluster.step_s.predicted or math.inf for cluster in self.clusters)


def compare(plan: Plan, result: RunResult, speed: float) -> Rehearsal:
    """Compare what `plan` predicted with the result of its run at `speed`."""
    figures = {each.stage: each for each in result.stages}
    clusters = tuple(_cluster(plan, index, figures, speed) for index in range(len(plan.clusters)))
    achieved = [cluster.samples_per_s.achieved for cluster in clusters]
    known = [rate for rate in achieved if rate is not None]
    stages = [stage for cluster in clusters for stage in cluster.stages]
    late = {stage.stage: stage.late_share for stage in stages if stage.late_share is not None}
    most = max(late.values(), default=None)
    behind = tuple(stage for stage, share in late.items() if share > MOST_LATE)
    several, predicted = len(clusters) > 1, plan.predicted
    suggested = slower(speed, most) if most is not None and behind else None
    return Rehearsal(
        speed=speed,
        steady=all(stage.step_s.achieved is not None for stage in stages),
        most_late_share=most,
        late_stages=behind,
        suggested_speed=suggested if suggested is not None and suggested >= LEAST_SPEED else None,
        samples_per_s=Compared(predicted.samples_per_s, sum(known) if len(known) == len(clusters) else None),
        averaging_s=Compared(
            predicted.loaded_averaging_s if several else None,
            result.averaging_s * speed if several and result.averaging_s is not None else None,
        ),
        rounds=result.rounds,
        staleness_bound=plan.workload.max_staleness,
        clusters=clusters,
        run=result,
        merges_late_share=(1.0 - 1.0 / speed)
        * max((each.steady.averaging for each in result.stages if each.steady is not None), default=0.0),
        links_late_s=max((each.link_late_s * speed for each in result.stages if each.link_late_s), default=None),
    )


def slower(speed: float, late_share: float) -> float:
    """Return the speed, in two digits, at which a machine might keep up that was late by `late_share` at this one."""
    wanted = _SPARE * speed / (1.0 + late_share)
    unit = 10.0 ** (math.floor(math.log10(wanted)) - 1)
    return round(math.floor(wanted / unit) * unit, 10)


def as_plain(rehearsal: Rehearsal) -> dict[str, object]:
    """Return the comparison, and whether it is faithful, as JSON has them. The result of the run itself is left out."""
    judged = {
        "faithful": rehearsal.faithful,
        "unfaithful_in": list(rehearsal.unfaithful_in),
        "links_late_share": rehearsal.links_late_share,
    }
    return {**judged, **{name: json_value(item) for name, item in asdict(rehearsal).items() if name != "run"}}


def _cluster(plan: Plan, index: int, figures: Mapping[str, StageFigures], speed: float) -> ClusterRehearsal:
    cluster, predicted = plan.clusters[index], plan.predicted.clusters[index]
    samples = plan.workload.micro_batch
    names = [stage_name(cluster.name, at) for at in range(len(cluster.stages))]
    step_s = samples / predicted.samples_per_s
    stages = tuple(
        _stage(name, stage.node, figures.get(name), (step_s, costs.compute_s), speed)
        for name, stage, costs in zip(names, cluster.stages, predicted.stages, strict=True)
    )
    last = stages[-1].step_s.achieved
    memories = [figures[name].memory for name in names if name in figures]
    windows = [memory.window for memory in memories if memory is not None and memory.window is not None]
    busiest = max(stages, key=lambda stage: (stage.busy.achieved or 0.0, stage.busy.predicted or 0.0))
    return ClusterRehearsal(
        name=cluster.name,
        samples_per_s=Compared(predicted.samples_per_s, samples / last if last else None),
        step_s=stages[-1].step_s,
        bottleneck=busiest.stage,
        busy=busiest.busy,
        mean_staleness=_mean([stage.mean_staleness for stage in stages]),
        max_staleness=max((stage.max_staleness for stage in stages if stage.max_staleness is not None), default=None),
        stages=stages,
        window=Compared(cluster.window, max(windows, default=None)),
    )


def _stage(
    name: str, node: str, figures: StageFigures | None, predicted: tuple[float, float], speed: float
) -> StageRehearsal:
    """`predicted`: seconds per micro-batch of the cluster, and of this stage's computing."""
    step_s, compute_s = predicted
    if figures is None:
        figures = StageFigures(name, node, None, None)
    steady, memory = figures.steady, figures.memory
    return StageRehearsal(
        stage=name,
        node=node,
        step_s=Compared(step_s, None if figures.step_s is None else figures.step_s * speed),
        busy=Compared(compute_s / step_s, None if steady is None else steady.compute),
        memory_bytes=Compared(
            None if memory is None else memory.planned_bytes, None if memory is None else memory.tensor_bytes
        ),
        waiting={} if steady is None else steady.waiting,
        other={} if steady is None else _other(steady),
        mean_staleness=figures.mean_staleness,
        max_staleness=figures.max_staleness,
        late_share=figures.late_share,
    )


def _other(steady: TimeShares) -> dict[str, float]:
    return {"averaging": steady.averaging, "evaluation": steady.evaluation, "handing over": steady.handoff}


def _mean(values: Sequence[float | None]) -> float | None:
    """Return the mean over stages, which all compute equally many gradients; None where nothing is known."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
