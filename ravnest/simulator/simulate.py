"""Simulates a run of a plan under the virtual clock, with what a scenario adds, and reads off its figures.

In: a plan, a scenario, and an end in samples or virtual seconds. Out: a `SimulatedRun`. The steady state lasts from a
fifth of the run to the drain. The state machines of a real run (ravnest/pipeline) decide what happens. This machine's
clock is read for one figure only: how long the simulation took.
"""

from __future__ import annotations

import os
import time
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

from cluster_planner import Plan
from ravnest.errors import InvalidInput, naming
from ravnest.pipeline import stage_name
from ravnest.pipeline.time_ledger import KIND_OF_COMPUTE
from ravnest.simulator.clock import Action
from ravnest.simulator.fleet import VirtualFleet, fleet_of_plan
from ravnest.simulator.run import VirtualRun
from ravnest.simulator.scenario import (
    BandwidthChange,
    Scenario,
    Stall,
    chance_stalls,
    computing_slowness,
    load_scenario,
)
from ravnest.simulator.simulated_run import LostNode, SimulatedRun, SimulatedStage, too_short
from ravnest.simulator.trace import VirtualResult
from ring_allreduce.rounds import SILENCE_FLOOR_S
from ring_allreduce.transport import Lane

STEADY_FROM = 0.2
"""The share of the run after which the steady state begins."""
SPANS = 120
"""For how many spans of equal length the throughput is told."""
DEFAULT_S = 3600.0
"""Virtual seconds that are simulated where no end is given."""

OnProgress = Callable[[float, float, int], None]
"""A function of the share that is done (0 to 1), the virtual time in seconds, and the number of events so far."""


def simulate(
    plan: Plan,
    scenario: Scenario | None = None,
    *,
    samples: int | None = None,
    seconds: float | None = None,
    seed: int = 0,
    on_progress: OnProgress | None = None,
) -> SimulatedRun:
    """Simulate one run of `plan`. The same seed gives the same figures, except for `wall_s`.

    Arguments:
        scenario: what happens beyond the plan; None: everything goes as planned.
        samples: the run ends when the fleet has made so many samples.
        seconds: the run ends after so many virtual seconds: DEFAULT_S where neither end is given.
        seed: of jitter and of stalls by chance.
        on_progress: hears how far the simulation has come.

    Raises:
        InvalidInput: both ends are given, one of them is impossible, or the scenario names an unknown or idle node.
    """
    if samples is not None and seconds is not None:
        raise InvalidInput("give samples or seconds, not both")
    for key, value in (("samples", samples), ("seconds", seconds)):
        if value is not None and not 0 < value < float("inf"):
            raise InvalidInput(f"must be a finite number above 0, not {value!r}", key=key)
    wanted = scenario or Scenario()
    nodes = {stage.node for cluster in plan.clusters for stage in cluster.stages}
    wanted.require_nodes(nodes, {spare.node for spare in plan.spares})
    if samples is None and seconds is None:
        seconds = DEFAULT_S
    fleet = fleet_of_plan(plan, tuned=True, jitter_s=wanted.link_jitter_s, control_latency_s=wanted.control_latency_s)
    return _Simulation(plan, fleet, wanted, seed).run(samples, seconds, on_progress)


def check_simulation(
    hours: float | None, samples: int | None, jitter: float | None, link_jitter_ms: float | None
) -> None:
    """Raises InvalidInput where the arguments of `simulate_as_asked` are impossible."""
    if hours is not None and samples is not None:
        raise InvalidInput("hours and samples say when to end: give one of them", key="samples")
    if hours is not None and not 0 < 3600 * hours < float("inf"):
        raise InvalidInput(f"must be a finite number above 0, not {hours:g}", key="hours")
    if samples is not None and samples < 1:
        raise InvalidInput(f"must be at least 1, not {samples}", key="samples")
    for key, value in (("jitter", jitter), ("link_jitter_ms", link_jitter_ms)):
        if value is not None and not 0 <= value < float("inf"):
            raise InvalidInput(f"must be a finite number, 0 or more, not {value:g}", key=key)


def simulate_as_asked(
    plan: Plan,
    scenario: Scenario | str | os.PathLike[str] | None,
    *,
    hours: float | None,
    samples: int | None,
    seed: int,
    jitter: float | None,
    link_jitter_ms: float | None,
    plan_path: str | os.PathLike[str] | None,
    on_progress: OnProgress | None,
) -> SimulatedRun:
    """As `simulate`, with its length chosen where neither hours nor samples are given, and with remarks on the result.

    Arguments:
        hours, samples: virtual hours or samples of the fleet after which training ends.
        jitter: replaces the scenario's coefficient of variation of computations.
        link_jitter_ms: replaces the scenario's link jitter, in milliseconds.
        scenario: the scenario, or the scenario.yaml that describes it, which errors then name.
        plan_path: the file that other errors name; None for none.
    """
    source = scenario if isinstance(scenario, str | os.PathLike) else plan_path
    wanted = load_scenario(scenario) if isinstance(scenario, str | os.PathLike) else scenario or Scenario()
    if jitter is not None:
        wanted = replace(wanted, compute_jitter=jitter)
    if link_jitter_ms is not None:
        wanted = replace(wanted, link_jitter_s=link_jitter_ms / 1000)
    with nullcontext() if source is None else naming(source):
        if hours is None and samples is None:
            until = default_length(plan, wanted, seed)
        else:
            until = SimulationLength(samples, None if hours is None else 3600 * hours, "")
        result = simulate(
            plan, wanted, samples=until.samples, seconds=until.seconds, seed=seed, on_progress=on_progress
        )
    unreached = tuple(wanted.after(result.drain_s))
    return replace(result, ended=until.reason, too_short=too_short(result, plan), unreached=unreached)


class _Simulation:
    def __init__(self, plan: Plan, fleet: VirtualFleet, scenario: Scenario, seed: int) -> None:
        self._plan = plan
        self._fleet = fleet
        self._scenario = scenario
        self._seed = seed
        slowness = None
        if scenario.compute_jitter:
            variation = scenario.compute_jitter
            names = (who for cluster in fleet.clusters for who in cluster.stage_names())
            slowness = {who: computing_slowness(seed, who, variation) for who in names}
        self._run = VirtualRun(fleet, traced=False, slowness=slowness, seed=seed)
        self._stage_of = {
            stage.node: stage_name(cluster.name, index)
            for cluster in plan.clusters
            for index, stage in enumerate(cluster.stages)
        }
        self._machine_of = {node: fleet.node_of[who] for node, who in self._stage_of.items()}
        self._updated_s = {cluster.name: array("d") for cluster in fleet.clusters}
        """By cluster: when its first stage made its updates."""
        self._stalls = 0
        self._first_lost: LostNode | None = None
        self._steady_from_s = 0.0
        self._at_steady: Mapping[str, Mapping[str, float]] = {}
        self._stalled_at_steady: Mapping[str, Mapping[str, float]] = {}
        self._at_drain: Mapping[str, Mapping[str, float]] = {}
        self._stop_samples: int | None = None

    def run(self, samples: int | None, seconds: float | None, on_progress: OnProgress | None) -> SimulatedRun:
        doing: list[tuple[float, Action, Any]] = [(stall.at_s, self._stall, stall) for stall in self._scenario.stalls]
        doing += [(change.at_s, self._change, change) for change in self._scenario.bandwidth]
        for number, rate in enumerate(self._scenario.stall_rates):
            for node in rate.nodes or self._stage_of:
                coming = chance_stalls(self._seed, node, number, rate.per_hour, rate.for_s)
                gap_s, for_s = next(coming)
                doing.append((gap_s, self._stall_by_chance, (Stall(node, gap_s, for_s), coming)))
        if seconds is not None:
            doing.append((STEADY_FROM * seconds, self._steady, None))
        else:
            self._stop_samples = samples
        self._run.on_samples = self._count
        self._run.on_drain = self._drained

        def progress() -> None:
            run = self._run
            done = run.total_samples / samples if samples else run.clock.now_s / (seconds or 1.0)
            if on_progress is not None:
                on_progress(min(1.0, done), run.clock.now_s, run.clock.events)

        began_s = time.perf_counter()
        result = self._run.run(samples, stop_s=seconds, doing=doing, on_progress=progress)
        return self._read(result, time.perf_counter() - began_s)

    # What the scenario does.

    def _stall(self, stall: Stall) -> None:
        now_s = self._run.clock.now_s
        if self._run.draining or not self._run.stages[self._stage_of[stall.node]].stall(stall.for_s):
            return
        self._stalls += 1
        if stall.for_s > SILENCE_FLOOR_S and self._first_lost is None:
            self._first_lost = LostNode(stall.node, now_s, stall.for_s, now_s + SILENCE_FLOOR_S)

    def _stall_by_chance(self, told: tuple[Stall, Iterator[tuple[float, float]]]) -> None:
        stall, coming = told
        if self._run.draining:
            return
        self._stall(stall)
        gap_s, for_s = next(coming)
        again = Stall(stall.node, self._run.clock.now_s + stall.for_s + gap_s, for_s)
        self._run.clock.at(again.at_s, self._stall_by_chance, (again, coming))

    def _change(self, change: BandwidthChange) -> None:
        machines = {self._machine_of[node]: None for node in change.nodes or self._stage_of}
        for machine in machines:
            planned = self._fleet.nodes[machine]
            self._run.network.change_node(
                machine, planned.up_bytes_per_s * change.up, planned.down_bytes_per_s * change.down
            )

    # What is counted.

    def _count(self, cluster: str, samples: int) -> None:
        run = self._run
        self._updated_s[cluster].append(run.clock.now_s)
        if (
            self._stop_samples is not None
            and not self._at_steady
            and run.total_samples >= STEADY_FROM * self._stop_samples
        ):
            self._steady(None)

    def _steady(self, _: None) -> None:
        self._steady_from_s = self._run.clock.now_s
        self._at_steady = self._run.seconds()
        self._stalled_at_steady = {who: dict(stage.stalled_s) for who, stage in self._run.stages.items()}

    def _drained(self) -> None:
        self._at_drain = self._run.seconds()

    # What comes of it.

    def _read(self, result: VirtualResult, wall_s: float) -> SimulatedRun:
        run, rounds = self._run, self._run.rounds
        per_update = self._fleet.update_every * self._fleet.micro_batch
        steady_s = result.drain_s - self._steady_from_s
        clusters = {
            name: per_update * self._between(name, self._steady_from_s, result.drain_s) / steady_s
            if steady_s > 0
            else 0.0
            for name in self._updated_s
        }
        stages = tuple(
            self._stage(stage_name(cluster.name, index), stage.node, result, steady_s)
            for cluster in self._plan.clusters
            for index, stage in enumerate(cluster.stages)
        )
        in_anchor = sum(
            min(rounds.contributed_samples(who) for who in cluster.stage_names()) if self._fleet.rings else samples
            for cluster, samples in zip(self._fleet.clusters, run.samples.values(), strict=True)
        )
        rounds_s = tuple(zip(rounds.opened_s, rounds.committed_s, strict=True))
        took_s = [committed_s - opened_s for opened_s, committed_s in rounds_s]
        took_s = took_s[:-1] or took_s
        staleness: Counter[int] = Counter()
        for stage in stages:
            staleness.update(stage.staleness)
        return SimulatedRun(
            seed=self._seed,
            samples=run.total_samples,
            drain_s=result.drain_s,
            end_s=result.end_s,
            steady_from_s=self._steady_from_s,
            samples_per_s=sum(clusters.values()),
            overall_samples_per_s=run.total_samples / result.end_s,
            goodput_per_s=in_anchor / result.end_s,
            clusters=clusters,
            stages=stages,
            staleness=dict(sorted(staleness.items())),
            rounds=len(rounds.committed_s),
            averaging_s=sum(took_s) / len(took_s) if took_s else None,
            longest_averaging_s=max(took_s, default=None),
            rounds_s=rounds_s,
            pipeline_bytes=run.network.bytes_sent[Lane.PIPELINE],
            averaging_bytes=run.network.bytes_sent[Lane.BULK],
            lost=_lost(stages),
            stalls=self._stalls,
            first_lost=self._first_lost,
            over_time=self._over_time(result.drain_s, per_update),
            events=run.clock.events,
            wall_s=wall_s,
        )

    def _stage(self, who: str, node: str, result: VirtualResult, steady_s: float) -> SimulatedStage:
        stage = self._run.stages[who]
        since, until = self._at_steady.get(who, {}), self._at_drain[who]
        stalled, before = stage.stalled_s, self._stalled_at_steady.get(who, {})
        busy_s = sum(until[kind] - since.get(kind, 0.0) for kind in _COMPUTING)
        busy_s -= sum(stalled.get(kind, 0.0) - before.get(kind, 0.0) for kind in _COMPUTING)
        seconds = {state: spent_s - stalled.get(state, 0.0) for state, spent_s in until.items()}
        return SimulatedStage(
            name=who,
            node=node,
            utilisation=max(0.0, min(1.0, busy_s / steady_s)) if steady_s > 0 else 0.0,
            seconds={**{k: v for k, v in seconds.items() if v > 0}, "stalled": sum(stalled.values())},
            late_s=stage.late_s,
            staleness=result.staleness[who],
        )

    def _between(self, cluster: str, from_s: float, until_s: float) -> int:
        times = self._updated_s[cluster]
        return bisect_right(times, until_s) - bisect_right(times, from_s)

    def _over_time(self, drain_s: float, per_update: int) -> tuple[tuple[float, float], ...]:
        span_s = drain_s / SPANS
        if span_s <= 0:
            return ()
        made: Counter[int] = Counter()
        for times in self._updated_s.values():
            made.update(min(SPANS - 1, int(at_s / span_s)) for at_s in times if at_s <= drain_s)
        return tuple(((span + 1) * span_s, made[span] * per_update / span_s) for span in range(SPANS))


_COMPUTING = tuple(dict.fromkeys(KIND_OF_COMPUTE.values()))


def _lost(stages: tuple[SimulatedStage, ...]) -> dict[str, float]:
    """The share of all stages' time that was lost, by cause. Jitter is part of computing, and net of what it saved."""
    total: Counter[str] = Counter()
    for stage in stages:
        total.update(stage.seconds)
    whole_s = sum(total.values())
    lost = {cause: spent_s / whole_s for cause, spent_s in total.items() if cause not in _COMPUTING and spent_s > 0}
    late_s = sum(stage.late_s for stage in stages)
    return {**lost, **({"jitter": late_s / whole_s} if late_s else {})} if whole_s > 0 else {}


MOST_EVENTS = 5_000_000
"""How many events a simulation without a given end may take: half a minute to a minute of one core."""
HOUR_S = 3600.0
"""How long a job is simulated that ends after epochs, whose samples the plan does not know."""
TRIED_EVENTS = 50_000
"""How many events a trial must have before it tells how many events a sample takes."""
_LEAST_UPDATES = 4
_LONGER = 4


@dataclass(frozen=True)
class SimulationLength:
    """Where a simulation ends: one of `samples` and `seconds`, both as `simulate` takes them, is given."""

    samples: int | None
    seconds: float | None
    reason: str
    """Why it ends there, in words."""


def default_length(
    plan: Plan,
    scenario: Scenario,
    seed: int,
    *,
    most_events: int = MOST_EVENTS,
    tried_events: int = TRIED_EVENTS,
) -> SimulationLength:
    """How far a simulation goes whose end nobody has said: to the job's own end, if the events that it takes allow.

    Arguments:
        most_events: about how many events are simulated at most.
        tried_events: how many events a trial must have before it tells how many events a sample takes.
    """
    samples, seconds, end = _stop(plan)
    wanted = samples if samples is not None else (seconds or HOUR_S) * plan.predicted.samples_per_s
    per_update = plan.workload.micro_batch * plan.workload.update_every * len(plan.clusters)
    tried = _LEAST_UPDATES * per_update
    while tried < wanted:
        made = simulate(plan, scenario, samples=tried, seed=seed)
        if made.events >= tried_events:
            affordable = int(made.samples * most_events / made.events)
            if affordable < wanted:
                few = max(affordable, tried)
                reason = (
                    f"that is {few / wanted:.2g} of {end}, as far as some {most_events / 1e6:g} million events reach"
                )
                return SimulationLength(few, None, f"{reason}; --samples or --hours goes on")
            break
        tried *= _LONGER
    return SimulationLength(samples, seconds, f"that is {end}")


def _stop(plan: Plan) -> tuple[int | None, float | None, str]:
    """The job's own end in samples or in seconds, and a phrase that names it."""
    stop = plan.job.get("stop")
    said = stop if isinstance(stop, Mapping) else {}
    samples, minutes = said.get("samples"), said.get("minutes")
    if isinstance(samples, int):
        return samples, None, f"the job's own end ({samples:,} samples)"
    if isinstance(minutes, int | float):
        return None, 60.0 * minutes, f"the job's own end ({minutes:g} minutes)"
    return None, HOUR_S, "an hour, for the plan does not know how many samples the job's epochs are"
