"""Clusters of stage machines joined by links that keep the order and nothing else: random delays, random
compute.

A minimal fleet for property tests, independent of `ravnest.simulator.run`. It opens rounds at random
times, commits each when all have contributed, drains, and finishes the rounds, as the driver of a run does.
"""

from __future__ import annotations

import copy
import heapq
import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from cluster_planner import Schedule
from ravnest.pipeline import StageMachine, StageShape
from ravnest.pipeline import events as ev
from ravnest.pipeline import instructions as ins

Who = tuple[int, int]  # cluster, stage
DRIVER: Who = (-1, -1)


@dataclass(frozen=True)
class Scenario:
    stages: tuple[int, ...]  # of each cluster
    update_every: int = 2
    max_staleness: int = 1
    window: int = 4
    max_lag: int = 1
    clip: bool = False
    rounds: int = 3  # opened while training; one more at the end
    evaluations: int = 1
    seed: int = 0
    drain_at_s: float = 60.0
    schedule: Schedule = "async"
    spare_room: int = 0  # beyond what is in flight at most: 0 never splits a backward

    @property
    def room(self) -> int:
        return (self.max_staleness + 1) * self.update_every + self.spare_room if self.spare_room else 0


@dataclass
class Fleet:
    scenario: Scenario
    probe: Callable[[StageMachine, ev.Event], None] | None = None
    """Called with a copy of the machine after each event that it has handled."""
    trace: dict[Who, list[ins.Instruction]] = field(default_factory=lambda: defaultdict(list))
    forward_version: dict[tuple[Who, int], int] = field(default_factory=dict)
    largest_staleness: int = 0
    snapshot_version: dict[tuple[int, int], set[int]] = field(default_factory=lambda: defaultdict(set))
    evaluations_reported: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    drained: dict[int, ins.ReportDrained] = field(default_factory=dict)
    finished: dict[Who, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        s = self.scenario
        self.random = random.Random(s.seed)
        self.heap: list[tuple[float, int, Who, ev.Event]] = []
        self.sequence = 0
        self.link_free_s: dict[tuple[Who, Who], float] = defaultdict(float)
        self.contributed: dict[int, set[Who]] = defaultdict(set)
        self.opened = self.committed = self.evaluation_count = 0
        self.machines = {
            (c, i): StageMachine(
                StageShape(
                    *(n, i, s.update_every, s.max_staleness, s.window, s.max_lag, s.clip, s.schedule),
                    room=s.room if i else 0,
                )
            )
            for c, n in enumerate(s.stages)
            for i in range(n)
        }
        # Each stage has its own speed, each link its own typical delay; both vary from use to use.
        self.pace_s = {who: self.random.choice([0.3, 0.5, 1.0, 3.0]) for who in self.machines}
        self.delay_s: dict[tuple[Who, Who], float] = defaultdict(lambda: self.random.choice([0.0, 0.5, 2.0, 8.0]))

    def run(self) -> Fleet:
        s = self.scenario
        for who in self.machines:
            self._push(0.0, who, ev.Started())
        openings = sorted(self.random.uniform(0, s.drain_at_s) for _ in range(s.rounds))
        controls: list[tuple[float, Callable[[float], None]]] = [(at, self._open) for at in openings]
        for c in range(len(s.stages)):
            at = s.drain_at_s * self.random.uniform(0.5, 1.5)
            controls.append((at, lambda now_s, c=c: self._send(DRIVER, (c, 0), ev.DrainRequested(), now_s)))
            controls += [
                (self.random.uniform(0, s.drain_at_s), lambda now_s, c=c: self._evaluate(c, now_s))
                for _ in range(s.evaluations)
            ]
            window = self.random.randint(1, 2 * s.window)
            controls.append(
                (
                    self.random.uniform(0, s.drain_at_s),
                    lambda now_s, c=c, w=window: self._send(DRIVER, (c, 0), ev.WindowChanged(w), now_s),
                )
            )
            for i in range(1, s.stages[c] if s.room else 0):
                for at in (self.random.uniform(0, s.drain_at_s) for _ in range(4)):
                    split = ev.SplitChanged(self.random.random() < 0.7)
                    controls.append(
                        (at, lambda now_s, who=(c, i), split=split: self._send(DRIVER, who, split, now_s)),
                    )
        controls.sort(key=lambda control: control[0])
        while self.heap or controls:
            if controls and (not self.heap or controls[0][0] <= self.heap[0][0]):
                at, act = controls.pop(0)
                act(at)
                continue
            now_s, _, who, event = heapq.heappop(self.heap)
            self._handle(who, event, now_s)
        return self

    # The driver's part.

    def _open(self, now_s: float) -> None:
        self.opened += 1
        for c, stages in enumerate(self.scenario.stages):
            if c in self.drained:
                self._finish_rounds(c, now_s)
            else:
                self._send(DRIVER, (c, stages - 1), ev.RoundOpened(self.opened), now_s)

    def _finish_rounds(self, cluster: int, now_s: float) -> None:
        updates = self.drained[cluster].updates
        for who in self.machines:
            if who[0] == cluster:
                self._send(DRIVER, who, ev.RoundsToFinish(self.opened, updates), now_s)

    def _evaluate(self, cluster: int, now_s: float) -> None:
        self.evaluation_count += 1
        event = ev.EvaluationRequested(self.evaluation_count, self.random.randint(1, 9))
        self._send(DRIVER, (cluster, 0), event, now_s)

    def _contributed(self, who: Who, round_number: int, now_s: float) -> None:
        self.contributed[round_number].add(who)
        while len(self.contributed[self.committed + 1]) == len(self.machines):
            self.committed += 1
            for member in self.machines:
                self._send(DRIVER, member, ev.MergeArrived(self.committed), now_s)

    def _drained(self, cluster: int, report: ins.ReportDrained, now_s: float) -> None:
        assert cluster not in self.drained, "drained twice"
        self.drained[cluster] = report
        self._finish_rounds(cluster, now_s)
        if len(self.drained) == len(self.scenario.stages):
            self._open(now_s)

    # The stages' part.

    def _handle(self, who: Who, event: ev.Event, now_s: float) -> None:
        machine = self.machines[who]
        busy = machine.running is not None
        instructions = machine.handle(event, now_s)
        machine.check()
        if self.probe is not None:
            self.probe(copy.deepcopy(machine), event)
        self.trace[who] += instructions
        for instruction in instructions:
            assert not isinstance(instruction, ins.Fail), instruction.reason
            if isinstance(instruction, ins.Compute):
                assert not busy or isinstance(event, FINISHED), "two computations at once"
                self._compute(who, machine, instruction, now_s)
            else:
                self._carry(who, instruction, now_s)
        if isinstance(event, ev.ContributionFinished):
            self._contributed(who, event.round, now_s)

    def _compute(self, who: Who, machine: StageMachine, instruction: ins.Compute, now_s: float) -> None:
        s = self.scenario
        match instruction:
            case ins.RunForward(m):
                self.forward_version[who, m] = machine.version
                done: ev.Event = ev.ForwardFinished(m)
            case ins.RunInputGradients(m):
                done = ev.InputGradientsFinished(m)
            case ins.RunWeightGradients(m):
                self._count_staleness(who, machine, m)
                done = ev.WeightGradientsFinished(m)
            case ins.RunBackward(m):
                self._count_staleness(who, machine, m)
                ends = s.clip and (m + 1) % s.update_every == 0
                done = ev.BackwardFinished(m, self.norm_sq(who, m // s.update_every) if ends else None)
            case ins.RunUpdate(u):
                done = ev.UpdateFinished(u)
            case ins.TakeSnapshot(r):
                self.snapshot_version[who[0], r].add(machine.version)
                done = ev.ContributionFinished(r)
            case ins.ApplyMerge(r):
                done = ev.MergeFinished(r)
            case ins.RunEvaluation(e, b):
                done = ev.EvaluationForwardFinished(e, b)
        self._push(now_s + self.pace_s[who] * self.random.choice([0.0, 0.5, 1.0, 2.0]), who, done)

    def _count_staleness(self, who: Who, machine: StageMachine, micro_batch: int) -> None:
        staleness = machine.version - self.forward_version[who, micro_batch]
        self.largest_staleness = max(staleness, self.largest_staleness)

    def _carry(self, who: Who, instruction: ins.Instruction, now_s: float) -> None:
        cluster, stage = who
        before, after, first = (cluster, stage - 1), (cluster, stage + 1), (cluster, 0)
        match instruction:
            case ins.SendActivation(m):
                self._send(who, after, ev.ActivationArrived(m), now_s)
            case ins.SendGradient(m, r, norm_sq):
                self._send(who, before, ev.GradientArrived(m, r, norm_sq), now_s)
            case ins.SendGlobalNorm(u, norm_sq):
                self._send(who, after, ev.GlobalNormArrived(u, norm_sq), now_s)
            case ins.SendEvaluation(e, b, n):
                self._send(who, after, ev.EvaluationArrived(e, b, n), now_s)
            case ins.CreditEvaluation(e, b):
                self._send(who, first, ev.EvaluationCredited(e, b), now_s)
            case ins.ReportEvaluation(e):
                self.evaluations_reported[cluster].append(e)
            case ins.ReportDrained():
                self._drained(cluster, instruction, now_s)
            case ins.ReportRoundsFinished(r):
                self.finished[who] = r

    @staticmethod
    def norm_sq(who: Who, update: int) -> float:
        """What a stage's own gradient is said to measure: whole numbers, so that sums are exact."""
        return float((who[1] + 1) * (update + 1))

    def _send(self, source: Who, target: Who, event: ev.Event, now_s: float) -> None:
        arrives_s = now_s + self.delay_s[source, target] * self.random.choice([0.0, 0.5, 1.0, 2.0])
        arrives_s = self.link_free_s[source, target] = max(arrives_s, self.link_free_s[source, target])
        self._push(arrives_s, target, event)

    def _push(self, at_s: float, who: Who, event: ev.Event) -> None:
        self.sequence += 1
        heapq.heappush(self.heap, (at_s, self.sequence, who, event))


FINISHED = (
    ev.ForwardFinished,
    ev.BackwardFinished,
    ev.InputGradientsFinished,
    ev.WeightGradientsFinished,
    ev.UpdateFinished,
    ev.ContributionFinished,
    ev.MergeFinished,
    ev.EvaluationForwardFinished,
)
