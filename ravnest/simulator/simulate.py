"""Simulates a run of a plan under the virtual clock, with what a scenario adds, and reads off its figures.

In: a plan, a scenario, and an end in samples or virtual seconds. Out: a `SimulatedRun`. The steady state lasts from a
fifth of the run to the drain. The state machines of a real run (ravnest/pipeline) decide what happens. This machine's
clock is read for one figure only: how long the simulation took.
"""

from __future__ import annotations

import math
import time
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cluster_planner import Plan
from ravnest.errors import InvalidInput
from ravnest.pipeline import stage_name
from ravnest.pipeline.time_ledger import KIND_OF_COMPUTE
from ravnest.simulator.clock import Action
from ravnest.simulator.fleet import VirtualFleet, fleet_of_plan
from ravnest.simulator.run import VirtualRun
from ravnest.simulator.scenario import (
    BandwidthChange,
    Death,
    Scenario,
    Stall,
    chance_stalls,
    computing_slowness,
)
from ravnest.simulator.simulated_run import LostCluster, SimulatedRun, SimulatedStage
from ravnest.simulator.stage import RunningStage
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
    stop: Callable[[], bool] | None = None,
) -> SimulatedRun:
    """Simulate one run of `plan`. The same seed gives the same figures, except for `wall_s`.

    Arguments:
        scenario: what happens beyond the plan; None: everything goes as planned.
        samples: the run ends when the fleet has made so many samples.
        seconds: the run ends after so many virtual seconds: DEFAULT_S where neither end is given.
        seed: of jitter and of stalls by chance.
        on_progress: hears how far the simulation has come.
        stop: is asked as often whether training is to end there.

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
    return _Simulation(plan, fleet, wanted, seed).run(samples, seconds, on_progress, stop)


@dataclass
class _Absence:
    cluster: str
    node: str
    silent_from_s: float
    lost_s: float
    made: int
    """Samples that it had made when it was lost."""
    back_s: float | None = None
    averaged: int | None = None
    """Samples of it that were averaged when it trained again; None while it does not."""

    def away_s(self, until_s: float) -> float:
        return max(0.0, (until_s if self.back_s is None else min(self.back_s, until_s)) - self.lost_s)


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
        self._absences: list[_Absence] = []
        self._back_s: dict[str, float] = {}
        """By node that has died: when it is back."""
        self._steady_from_s = 0.0
        self._at_steady: Mapping[str, Mapping[str, float]] = {}
        self._stalled_at_steady: Mapping[str, Mapping[str, float]] = {}
        self._at_drain: Mapping[str, Mapping[str, float]] = {}
        self._stop_samples: int | None = None
        self._stopped_early = False

    def run(
        self,
        samples: int | None,
        seconds: float | None,
        on_progress: OnProgress | None,
        stop: Callable[[], bool] | None,
    ) -> SimulatedRun:
        doing: list[tuple[float, Action, Any]] = [(stall.at_s, self._stall, stall) for stall in self._scenario.stalls]
        doing += [(change.at_s, self._change, change) for change in self._scenario.bandwidth]
        doing += [(death.at_s, self._die, death) for death in self._scenario.deaths]
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
        self._run.rounds.on_trains = self._trains

        def progress() -> None:
            run = self._run
            done = run.total_samples / samples if samples else run.clock.now_s / (seconds or 1.0)
            if on_progress is not None:
                on_progress(min(1.0, done), run.clock.now_s, run.clock.events)
            if stop is not None and not run.draining and stop():
                self._stopped_early = True
                run.end()

        began_s = time.perf_counter()
        result = self._run.run(samples, stop_s=seconds, doing=doing, on_progress=progress)
        return self._read(result, time.perf_counter() - began_s)

    # What the scenario does.

    def _stall(self, stall: Stall) -> None:
        clock = self._run.clock
        if self._run.draining or not self._run.stages[self._stage_of[stall.node]].stall(stall.for_s):
            return
        self._stalls += 1
        if stall.for_s > SILENCE_FLOOR_S:
            self._back_s[stall.node] = clock.now_s + stall.for_s
            stage = self._run.stages[self._stage_of[stall.node]]
            clock.after(SILENCE_FLOOR_S, self._lose, (stage, stall.node, clock.now_s))

    def _die(self, death: Death) -> None:
        stage, clock = self._run.stages[self._stage_of[death.node]], self._run.clock
        if self._run.draining:
            return
        self._back_s[death.node] = clock.now_s + (math.inf if death.back_after_s is None else death.back_after_s)
        if not stage.dead:
            stage.die()
            clock.after(death.noticed_after_s, self._lose, (stage, death.node, clock.now_s))

    def _lose(self, told: tuple[RunningStage, str, float]) -> None:
        stage, node, silent_from_s = told
        run, cluster = self._run, stage.cluster
        if run.stages[stage.who] is not stage or cluster not in run.rounds.clusters:
            return
        if self._absence(cluster) is None:  # else it was on its way back
            made = run.samples[cluster]
            self._absences.append(_Absence(cluster, node, silent_from_s, run.clock.now_s, made))
        run.lose(stage.who, f"node {node} is silent since {silent_from_s:g} s")
        self._restart(cluster)

    def _absence(self, cluster: str) -> _Absence | None:
        """Return what is known of the cluster's absence, where it does not train now."""
        return next((each for each in self._absences if each.cluster == cluster and each.back_s is None), None)

    def _restart(self, cluster: str) -> None:
        """Let a lost cluster join once all its nodes are there, and its processes have started."""
        clock, absence = self._run.clock, self._absence(cluster)
        nodes = [stage.node for stage in self._plan.cluster(cluster).stages]
        ready_s = max(clock.now_s, *(self._back_s.get(node, 0.0) for node in nodes))
        if ready_s < math.inf and not self._run.draining and absence is not None:
            clock.at(ready_s + self._scenario.restart_s, self._join, (absence, ready_s))

    def _join(self, told: tuple[_Absence, float]) -> None:
        absence, ready_s = told
        nodes = [stage.node for stage in self._plan.cluster(absence.cluster).stages]
        if any(self._back_s.get(node, 0.0) > ready_s for node in nodes):
            self._restart(absence.cluster)  # another node was lost meanwhile
        elif not self._run.draining:
            self._run.join(absence.cluster)

    def _trains(self, cluster: str) -> None:
        absence = self._absence(cluster)
        if absence is not None:
            absence.back_s = self._run.clock.now_s
            absence.averaged = self._run.rounds.averaged[cluster]

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
        if self._run.draining:
            return
        self._steady_from_s = self._run.clock.now_s
        self._at_steady = self._run.seconds()
        self._stalled_at_steady = {who: self._stalled(who) for who in self._run.stages}

    def _stalled(self, who: str) -> dict[str, float]:
        total: Counter[str] = Counter()
        for each in self._run.incarnations(who):
            total.update(each.stalled_s)
        return dict(total)

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
        kept = rounds.averaged if self._fleet.rings else run.samples
        rounds_s = tuple(
            zip(rounds.opened_s, rounds.committed_s, strict=False)
        )  # a run without clusters commits no more
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
            goodput_per_s=sum(kept.values()) / result.end_s,
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
            clusters_lost=tuple(self._lost(absence) for absence in self._absences),
            over_time=self._over_time(result.drain_s, per_update),
            events=run.clock.events,
            wall_s=wall_s,
            stopped_early=self._stopped_early,
        )

    def _lost(self, absence: _Absence) -> LostCluster:
        averaged = self._run.rounds.averaged[absence.cluster] if absence.averaged is None else absence.averaged
        told = absence.cluster, absence.node, absence.silent_from_s, absence.lost_s
        # Its last stage, which contributes, may be ahead of its first one, whose updates count.
        return LostCluster(*told, max(0, absence.made - averaged), absence.back_s)

    def _stage(self, who: str, node: str, result: VirtualResult, steady_s: float) -> SimulatedStage:
        since, until = self._at_steady.get(who, {}), self._at_drain[who]
        stalled, before = self._stalled(who), self._stalled_at_steady.get(who, {})
        cluster, _, _ = who.partition(".")
        away_s = sum(each.away_s(result.drain_s) for each in self._absences if each.cluster == cluster)
        busy_s = sum(until[kind] - since.get(kind, 0.0) for kind in _COMPUTING)
        busy_s -= sum(stalled.get(kind, 0.0) - before.get(kind, 0.0) for kind in _COMPUTING)
        seconds = {state: spent_s - stalled.get(state, 0.0) for state, spent_s in until.items()}
        return SimulatedStage(
            name=who,
            node=node,
            utilisation=max(0.0, min(1.0, busy_s / steady_s)) if steady_s > 0 else 0.0,
            seconds={
                **{k: v for k, v in seconds.items() if v > 0},
                "stalled": sum(stalled.values()),
                **({"away": away_s} if away_s else {}),
            },
            late_s=sum(each.late_s for each in self._run.incarnations(who)),
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
    """Returns the share of all stages' time that was lost, by cause. Jitter counts as computing, less what it saved."""
    total: Counter[str] = Counter()
    for stage in stages:
        total.update(stage.seconds)
    whole_s = sum(total.values())
    lost = {cause: spent_s / whole_s for cause, spent_s in total.items() if cause not in _COMPUTING and spent_s > 0}
    late_s = sum(stage.late_s for stage in stages)
    return {**lost, **({"jitter": late_s / whole_s} if late_s else {})} if whole_s > 0 else {}
