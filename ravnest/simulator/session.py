"""One session of a simulated run: from the start of all clusters until it ends, or no cluster is left.

In: a plan, a scenario, and which nodes are there. Out: how it ended, and what is known of it. The stage, ring and round
machines of a real run decide what happens, and `Replacements` about clusters that are lost, as in the driver. Nodes
that come and go change the same `Presence` in every session of a run.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import Any

from cluster_planner import Plan
from ravnest.errors import RunFailed
from ravnest.pipeline import stage_name
from ravnest.recovery import HourWatch, MoveCluster, NodesLeft, NodeSlow, Replacements, StartCluster, further_clusters
from ravnest.recovery.placing import WARM_S
from ravnest.recovery.replanning import CONSIDER_EVERY_S, PlanningAnew
from ravnest.simulator.clock import Action
from ravnest.simulator.fleet import VirtualFleet, fleet_of_plan, only, places
from ravnest.simulator.planning_anew import Planner, better_plan
from ravnest.simulator.presence import NodeChange, Presence
from ravnest.simulator.run import VirtualRun
from ravnest.simulator.scenario import BandwidthChange, Scenario, Stall, chance_stalls, computing_slowness
from ravnest.simulator.simulated_run import Absence
from ravnest.simulator.slow_nodes import SlowNodes
from ravnest.simulator.stage import RunningStage
from ravnest.simulator.trace import VirtualResult
from ravnest.simulator.warm_spares import WarmSpares, with_shadows
from ring_allreduce.rounds import SILENCE_FLOOR_S

LOOK_EVERY_S = 0.25
"""How often it is looked what is to be done about clusters that are away: a driver's loop turns more often."""
HOURS_EVERY_S = 10.0
"""How often nodes' hours are compared with the clock."""
START_LIMIT_S = 600.0
"""The longest that the processes of a cluster may take to start: longer than any scenario's `restart_s` is."""


class Session:
    """Runs once. Afterwards `run` and the other fields say what has happened."""

    def __init__(
        self,
        plan: Plan,
        scenario: Scenario,
        presence: Presence,
        hours: HourWatch | None,
        *,
        planner: Planner,
        seed: int,
        start_s: float = 0.0,
        left: NodesLeft | None = None,
        first: Plan | None = None,
    ) -> None:
        """`hours` acts the nodes' hours out. `planner` makes other plans. From `start_s` on the clusters train. `left`:
        the nodes that have left with notice, in all sessions of the run. `first`: the plan that it began with."""
        self._planner = planner
        questioned = first is not None and first is not plan
        self._planning = PlanningAnew(scenario.restart_s, questioned=questioned) if scenario.plans_anew else None
        self.next_plan: Plan | None = None
        """The plan that it was stopped for."""
        self._scenario = scenario
        self._presence = presence
        self._hours = hours
        self._seed = seed
        self.start_s = start_s
        """When the clusters began to train."""
        self.fleet = fleet_of_plan(
            plan, tuned=True, jitter_s=scenario.link_jitter_s, control_latency_s=scenario.control_latency_s
        )
        slowness = partial(computing_slowness, seed, variation=scenario.compute_jitter)
        self.run = VirtualRun(
            self.fleet, traced=False, slowness=slowness if scenario.compute_jitter else None, seed=seed, start_s=start_s
        )
        self._replacements = Replacements(plan, start_s=START_LIMIT_S, further=further_clusters(plan), left=left)
        for node in () if hours is None else hours.away:
            self._replacements.node_left(node)
        self._slow = SlowNodes(scenario.slow, self.run, plan, plan if first is None else first, self._slow_node)
        self._spares = WarmSpares(self.run, scenario.restart_s, self._place_spare)
        self._gone: dict[str, set[str]] = {}
        """By lost cluster: the stages that have to be started anew where it goes back to where it was."""
        self._machine_of = {node: self.fleet.node_of[who] for node, who in self._stages().items()}
        self.updated_s = {cluster.name: array("d") for cluster in self.fleet.clusters}
        """By cluster: when its first stage made its updates."""
        self.stalls = 0
        self.absences: list[Absence] = []
        self.saved: tuple[float, int] | None = None
        """The moment and the samples of the last checkpoint; None: there is none yet."""
        every = plan.job.get("evaluate_every")
        self._save_every = every if isinstance(every, int) else 0
        self._save_next = False
        """Whether the next round is saved, whatever is due."""
        self.steady_from_s = start_s
        self.at_steady: Mapping[str, Mapping[str, float]] = {}
        self.stalled_at_steady: Mapping[str, Mapping[str, float]] = {}
        self.at_drain: Mapping[str, Mapping[str, float]] = {}
        self._stop_s: float | None = None
        self._steady_samples: float | None = None
        self._looking = False
        self._result: VirtualResult | None = None

    @property
    def plan(self) -> Plan:
        """The plan, with the nodes that the stages are on now."""
        return self._replacements.plan

    def train(
        self,
        samples: int | None,
        stop_s: float | None,
        *,
        steady: float,
        on_progress: Callable[[], None] | None = None,
    ) -> VirtualResult:
        """Train until the fleet has made so many samples, or until the moment `stop_s`, or no cluster is left.

        `steady`: the steady state begins after so many samples where these end the run, else at that moment.
        """
        scenario, now_s = self._scenario, self.start_s
        doing: list[tuple[float, Action, Any]] = [(each.at_s, self._stall, each) for each in scenario.stalls]
        doing += [(change.at_s, self._change, change) for change in scenario.bandwidth]
        doing += [(change.at_s, self._changed, change) for change in scenario.changes()]
        doing = [each for each in doing if each[0] > now_s or not now_s]
        for number, rate in enumerate(scenario.stall_rates):
            for node in rate.nodes or self._stages():
                coming = chance_stalls(self._seed, node, number, rate.per_hour, rate.for_s)
                gap_s, for_s = next(coming)
                doing.append((now_s + gap_s, self._stall_by_chance, (Stall(node, now_s + gap_s, for_s), coming)))
        if self._hours is not None:
            doing.append((now_s, self._look_at_hours, self._hours))
        if self._planning is not None:
            doing.append((now_s, self._consider, self._planning))
        if self._slow:
            doing.append((now_s, self._slow.look, lambda: self.plan))
        if samples is not None:
            self._steady_samples = steady
        elif steady > now_s:
            doing.append((steady, self._steady, None))
        else:
            self._steady(None)
        run, self._stop_s = self.run, stop_s
        run.on_samples, run.on_drain = self._count, self._drained
        run.rounds.on_trains, run.rounds.on_commit = self._trains, self._committed
        run.rounds.on_left = self._left
        self._spares.begin(self.plan, self._presence.alive(now_s))
        self._result = run.run(samples, stop_s=stop_s, doing=doing, on_progress=on_progress)
        return self._result

    @property
    def result(self) -> VirtualResult:
        """What came of it, once it has ended."""
        if self._result is None:
            raise RunFailed("the session has not ended")
        return self._result

    # What becomes of nodes.

    def _stages(self) -> dict[str, str]:
        """By node that runs stages: the first of these."""
        found: dict[str, str] = {}
        for who, stage in places(self.plan.clusters):
            found.setdefault(stage.node, who)
        return found

    def _on(self, node: str) -> list[RunningStage]:
        """The stages that run on a node now."""
        return [
            self.run.stages[who]
            for who, stage in places(each for each in self.plan.clusters if each.name in self.run.rounds.clusters)
            if stage.node == node
        ]

    def _changed(self, change: NodeChange) -> None:
        clock, draining = self.run.clock, self.run.draining
        if self.run.over:
            return
        self._presence.take(change)
        match change.kind:
            case "notice" | "back" if draining:
                pass  # nothing is begun any more, and the cluster hands on what it has made in any case
            case "gone" | "ended":
                self._spares.lost(change.node, self._look_at_spares)
                for stage in self._on(change.node):
                    if not stage.dead:
                        stage.die()
                        if change.kind == "ended":
                            self._spares.ended(self.plan, stage.who)
                        clock.after(change.noticed_after_s, self._lose, (stage, change.node, clock.now_s))
            case "back":
                self._replacements.node_back(change.node, clock.now_s)
                self._keep_looking()
            case "notice":
                self._replacements.node_left(change.node, noticed=True)
                self._leave(change.node, f"node {change.node!r} leaves: {change.why}")

    def _leave(self, node: str, reason: str) -> None:
        clusters = [each.name for each in self.plan.clusters if node in [stage.node for stage in each.stages]]
        for cluster in clusters:
            if cluster in self._replacements.starting:
                self._replacements.failed(cluster, reason, self.run.clock.now_s)
            elif cluster in self.run.rounds.clusters:
                if cluster in self.run.rounds.following:
                    self._lose((self.run.stages[stage_name(cluster, 0)], node, self.run.clock.now_s))
                elif not self.run.leave(cluster, reason) and cluster not in self.run.rounds.leaving:
                    self._save_next = True  # the only one that trains: what it has made is saved before it is lost
                    self.run.rounds.request()

    def _left(self, who: str, reason: str) -> None:
        """A cluster that gave notice has handed on all that it has made."""
        cluster, now_s = self.run.stages[who].cluster, self.run.clock.now_s
        node = next((each.node for each in self.plan.cluster(cluster).stages if repr(each.node) in reason), "")
        made, kept = self.run.samples[cluster], self.run.rounds.goes_on_at(cluster)
        self.absences.append(Absence(cluster, node, now_s, now_s, made, with_notice=True, averaged=kept))
        self._out(cluster, who, reason, 0, notice=True)

    def _look_at_hours(self, hours: HourWatch) -> None:
        now_s = self.run.clock.now_s
        if self.run.draining:
            return
        for each in hours.turn((self._scenario.begins_at_hour or 0.0) * 3600.0 + now_s):
            self._changed(NodeChange(now_s, each.node, "notice" if each.kind == "leave" else "back", why=each.why))
        self.run.clock.after(HOURS_EVERY_S, self._look_at_hours, hours)

    def _stall(self, stall: Stall) -> None:
        clock = self.run.clock
        stalled = [] if self.run.draining else [each for each in self._on(stall.node) if each.stall(stall.for_s)]
        self.stalls += bool(stalled)
        if stalled and stall.for_s > SILENCE_FLOOR_S:
            self._presence.take(NodeChange(clock.now_s, stall.node, "gone", until_s=clock.now_s + stall.for_s))
            for stage in stalled:
                clock.after(SILENCE_FLOOR_S, self._lose, (stage, stall.node, clock.now_s))

    def _stall_by_chance(self, told: tuple[Stall, Iterator[tuple[float, float]]]) -> None:
        stall, coming = told
        if self.run.draining:
            return
        self._stall(stall)
        gap_s, for_s = next(coming)
        again = Stall(stall.node, self.run.clock.now_s + stall.for_s + gap_s, for_s)
        self.run.clock.at(again.at_s, self._stall_by_chance, (again, coming))

    def _change(self, change: BandwidthChange) -> None:
        machines = {self._machine_of[node]: None for node in change.nodes or self._machine_of}
        for machine in machines:
            planned = self.fleet.nodes[machine]
            self.run.network.change_node(
                machine, planned.up_bytes_per_s * change.up, planned.down_bytes_per_s * change.down
            )

    # What is done about clusters that are lost.

    def _lose(self, told: tuple[RunningStage, str, float]) -> None:
        """The driver notices that a stage is lost, on a node that has been silent since a moment."""
        stage, node, silent_from_s = told
        run, cluster = self.run, stage.cluster
        if stage not in run.rounds.stages(cluster):
            return  # it was lost with its cluster before, which may train again, also with fewer stages
        reason, made = f"node {node} is silent since {silent_from_s:g} s", run.samples.get(cluster, 0)
        if cluster in run.rounds.following:
            run.lose(stage.who, reason)
            self._replacements.failed(cluster, reason, run.clock.now_s, stage.who)
            return
        handed = run.rounds.handed.held_by(cluster)
        self.absences.append(Absence(cluster, node, silent_from_s, run.clock.now_s, made, handed=handed))
        self._out(cluster, stage.who, reason, made - run.rounds.averaged[cluster])

    def _out(self, cluster: str, who: str, reason: str, samples: int, *, notice: bool = False) -> None:
        run, left, was = self.run, self._replacements.left, dict(places([self.plan.cluster(cluster)]))
        gone = {name for name in was if name == who or run.stages[name].dead}
        if notice:
            gone = {name for name, each in was.items() if each.node in left}
        self._gone[cluster] = gone
        run.lose(who, reason, returns=not notice and gone <= self._spares.holding(gone).keys())
        if not run.draining:
            self._spares.cluster_lost(self.plan, cluster, gone)
            at_once = not notice and gone <= self._spares.takers({name: was[name].node for name in gone})
            self._replacements.lost(cluster, samples, run.clock.now_s, at_once=at_once, stage="" if notice else who)
            self._keep_looking()

    def _keep_looking(self) -> None:
        """From now on, look what is due. Before the first change there is nothing to look at."""
        if not self._looking:
            self._looking = True
            self.run.clock.after(LOOK_EVERY_S, self._look, None)

    def _look(self, _: None) -> None:
        """Do what is due about clusters that are away, as the driver's loop does at each of its turns."""
        run, now_s = self.run, self.run.clock.now_s
        if run.draining:
            return
        while self._replacements.due(now_s):
            warm = self._spares.holding(who for gone in self._gone.values() for who in gone)
            alive = self._presence.alive(now_s)
            ready = self._spares.ready(self.plan, alive, {e.node for _, e in places(self._replacements.begun)})
            for order in self._replacements.tick(alive, now_s, self._rest_s, warm, self._spares.there, ready):
                if isinstance(order, StartCluster):
                    start_s = WARM_S if order.placement.at_once else self._scenario.restart_s
                    run.clock.after(start_s, self._listening, (order, self._spares.take_places(order)))
                elif isinstance(order, MoveCluster) and order.cluster in run.rounds.training:
                    run.leave(order.cluster, order.reason)
        run.clock.after(LOOK_EVERY_S, self._look, None)

    @property
    def _rest_s(self) -> float:
        """For how long the run goes on, as far as that is known."""
        return math.inf if self._stop_s is None else self._stop_s - self.run.clock.now_s

    def _look_at_spares(self) -> None:
        if not self.run.draining:
            self._spares.look(self.plan, self._presence.alive(self.run.clock.now_s) - self._replacements.left)

    def _place_spare(self, name: str) -> None:
        """A warm spare of this name listens."""
        self.fleet = self._fleet_now(self.run.rounds.clusters)
        self.run.network.move(self.fleet, [name])

    def _listening(self, told: tuple[StartCluster, set[tuple[str, str]]]) -> None:
        """The processes of a cluster are there, unless a node of it is not. `told`: also the segments, as (stage,
        ring), that warm spares brought along."""
        order, taken = told
        run, now_s, cluster = self.run, self.run.clock.now_s, order.cluster
        if run.draining or cluster not in self._replacements.starting:
            return
        gone = {stage.node for stage in order.plan.cluster(cluster).stages} - self._presence.alive(now_s)
        if gone:
            self._replacements.failed(cluster, f"node {min(gone)} is not there", now_s)
            return
        self._gone.pop(cluster, None)
        self.fleet = self._fleet_now({cluster, *run.rounds.clusters})
        self.updated_s.setdefault(cluster, array("d"))
        run.join(cluster, self.fleet, self._spares.held(order, taken))
        self._replacements.listening(cluster, now_s)

    def _fleet_now(self, there: Collection[str]) -> VirtualFleet:
        """The fleet of the clusters that are `there`: one that is away may have given its nodes to others."""
        plan = only(with_shadows(self._replacements.plan, self._spares.nodes), there)
        jitter_s, latency_s = self._scenario.link_jitter_s, self._scenario.control_latency_s
        fleet = fleet_of_plan(plan, tuned=True, jitter_s=jitter_s, control_latency_s=latency_s)
        self._machine_of |= {stage.node: fleet.node_of[who] for who, stage in places(plan.clusters)}
        return fleet

    def _trains(self, cluster: str) -> None:
        now_s = self.run.clock.now_s
        replaced = self._replacements.trains(cluster, now_s)
        absence = next((each for each in self.absences if each.cluster == cluster and each.back_s is None), None)
        if absence is not None:
            absence.back_s, absence.nodes = now_s, tuple(replaced.nodes.values())
            absence.averaged = absence.averaged or self.run.rounds.averaged[cluster]
        self._look_at_spares()

    def _consider(self, planning: PlanningAnew) -> None:
        """Stop for another plan, if that pays."""
        run, now_s = self.run, self.run.clock.now_s
        if run.draining:
            return
        run.clock.after(CONSIDER_EVERY_S, self._consider, planning)
        alive = self._presence.alive(now_s) - (frozenset() if self._hours is None else self._hours.away)
        at = self._replacements.situation(alive, run.rounds.leaving, now_s, self._rest_s)
        better = better_plan(planning, self._planner, at)
        if better is not None:
            self.next_plan = better.plan
            run.end()

    def _slow_node(self, found: NodeSlow) -> None:
        self._replacements.node_slow(found.node, found.times, self.run.clock.now_s)
        self._keep_looking()

    # What is counted.

    @property
    def averaged(self) -> int:
        """The samples whose effect is in the anchor."""
        kept = self.run.rounds.averaged if self.fleet.rings else self.run.samples
        return self.run.rounds.handed.in_anchor(kept)

    def _committed(self, _: int) -> None:
        self._spares.committed()
        self._replacements.averaged(self.run.rounds.averaged)
        samples = self.averaged
        if self.saved is None or self._save_next or samples - self.saved[1] >= self._save_every:
            self.saved, self._save_next = (self.run.clock.now_s, samples), False

    def _count(self, cluster: str, samples: int) -> None:
        self.updated_s[cluster].append(self.run.clock.now_s)
        if self._steady_samples is not None and not self.at_steady and self.run.total_samples >= self._steady_samples:
            self._steady(None)

    def _steady(self, _: None) -> None:
        if self.run.draining:
            return
        self.steady_from_s = self.run.clock.now_s
        self.at_steady = self.run.seconds()
        self.stalled_at_steady = {who: self.run.stalled(who) for who in self.run.stages}

    def _drained(self) -> None:
        self.at_drain = self.run.seconds()
