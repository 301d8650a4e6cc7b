"""The virtual clock: the stage, ring and round machines of a whole fleet under one heap of future events.

Decides only when things end: a computation after its stated duration, a message as `EmulatedLink` says (the
same arithmetic by which the transport imitates links). What happens is decided by the very machines of a real
run. No tensors, no threads, no real time; deterministic. Not modelled: evaluation, jitter of compute,
failures.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

from cluster_planner.schedules import SPLIT_KEEPS
from ravnest.errors import RunFailed
from ravnest.pipeline import events as ev
from ravnest.pipeline import instructions as ins
from ravnest.pipeline.shape import StageShape
from ravnest.pipeline.stage_machine import StageMachine
from ravnest.pipeline.tempo import Passage
from ravnest.pipeline.tuned import TunedStage
from ravnest.pipeline.virtual_fleet import VirtualCluster, VirtualFleet, VirtualStage
from ravnest.pipeline.virtual_result import TraceEvent, VirtualResult
from ravnest.pipeline.virtual_rounds import VirtualRounds
from ravnest.pipeline.window import WindowTuner
from ring_allreduce.transport.emulation import EmulatedLink, LinkShape
from ring_allreduce.transport.stats import Lane

Action = Callable[[], None]


@dataclass
class _Stage:
    cluster: str
    times: VirtualStage
    tuned: TunedStage
    finished_round: int = -1

    @property
    def machine(self) -> StageMachine:
        return self.tuned.machine


class VirtualRun:
    """One run of a fleet, from the first injection to the last merge. `run` may be called once."""

    def __init__(self, fleet: VirtualFleet) -> None:
        self.now_s = 0.0
        self._fleet = fleet
        self._stages = {
            who: self._stage(cluster, index)
            for cluster in fleet.clusters
            for index, who in enumerate(cluster.stage_names())
        }
        self._neighbour = {
            (who, step): other
            for cluster in fleet.clusters
            for before, after in pairwise(cluster.stage_names())
            for who, step, other in ((before, 1, after), (after, -1, before))
        }
        self._rounds = VirtualRounds(fleet, self)
        self._heap: list[tuple[float, int, Action]] = []
        self._sequence = 0
        self._default_link = fleet.default_link
        self._links: dict[tuple[str, str], EmulatedLink[tuple[int, Action]]] = {}
        self._due_s: dict[tuple[str, str], float] = {}
        """When each link is to be served next."""
        self._trace: list[TraceEvent] = []
        self._samples = dict.fromkeys((cluster.name for cluster in fleet.clusters), 0)
        self._windows: list[tuple[float, str, int]] = []
        self._stop_samples = 0
        self._drain_s: float | None = None

    def run(self, stop_samples: int) -> VirtualResult:
        """Train until the fleet has made `stop_samples`, drain, and finish the rounds.

        Raises RunFailed if a machine fails, or if all wait for each other: both are bugs.
        """
        self._stop_samples = stop_samples
        if self._fleet.later_link is not None:
            at_s, shape = self._fleet.later_link
            self._at(at_s, partial(self._change_default_link, shape))
        for who in self._stages:
            self.tell(who, ev.Started())
        while self._heap:
            self.now_s, _, action = heapq.heappop(self._heap)
            action()
        waiting = [
            f"{who} at update {stage.machine.version}"
            for who, stage in self._stages.items()
            if stage.finished_round != self._rounds.opened
        ]
        if waiting or self._drain_s is None:
            raise RunFailed(f"nothing more can happen, but the end is not reached: {', '.join(waiting)}")
        return VirtualResult(
            trace=tuple(self._trace),
            micro_batch=self._fleet.micro_batch,
            drain_s=self._drain_s,
            end_s=self.now_s,
            staleness={who: stage.machine.staleness for who, stage in self._stages.items()},
            seconds={who: dict(stage.machine.ledger.seconds) for who, stage in self._stages.items()},
            windows=tuple(self._windows),
        )

    def after(self, delay_s: float, action: Action) -> None:
        """Do `action` in `delay_s` seconds; what is due at one time is done in the order of being asked
        for."""
        self._at(self.now_s + delay_s, action)

    def tell(self, who: str, event: ev.Event, carried: Passage | None = None) -> None:
        """Let a stage handle an event now, and carry out what it answers. `carried`: see Tempo.handled."""
        stage = self._stages[who]
        for instruction in stage.tuned.handle(event, self.now_s, carried):
            self._carry_out(who, instruction)
        if isinstance(event, ev.UpdateFinished) and stage.machine.shape.is_first:
            self._count(stage.cluster, stage.machine.version)

    def transmit(self, source: str, target: str, lane: Lane, n_bytes: int, word: str, action: Action) -> None:
        """Do `action` when a message has travelled from one stage to another."""
        link = self._links.get((source, target))
        if link is None:
            shape = self._fleet.links.get((source, target), self._default_link)
            link = self._links[source, target] = EmulatedLink(shape, seed=f"{source}>{target}")
        link.push(lane, (len(self._trace), action), n_bytes, self.now_s)
        self._trace.append(TraceEvent(self.now_s, self.now_s, source, word, "message"))
        self._serve((source, target))

    def _serve(self, pair: tuple[str, str]) -> None:
        if self._due_s.get(pair) == self.now_s:
            del self._due_s[pair]
        link = self._links[pair]
        arrived = link.pop_arrived(self.now_s)
        due_s = link.next_due_s()
        if due_s is not None and due_s < self._due_s.get(pair, float("inf")):
            self._due_s[pair] = due_s
            self._at(due_s, partial(self._serve, pair))
        for _, (index, action) in arrived:
            self._trace[index] = replace(self._trace[index], end_s=self.now_s)
            self._at(self.now_s, action)

    def _at(self, at_s: float, action: Action) -> None:
        self._sequence += 1
        heapq.heappush(self._heap, (at_s, self._sequence, action))

    def _carry_out(self, who: str, instruction: ins.Instruction) -> None:
        stage = self._stages[who]
        times, word = stage.times, str(instruction)
        match instruction:
            case ins.RunForward(m):
                self._compute(who, word, times.forward_s, ev.ForwardFinished(m))
            case ins.RunBackward(m):
                measured = self._fleet.clip and stage.machine.shape.ends_group(m)
                done = ev.BackwardFinished(m, 1.0 if measured else None)
                self._compute(who, word, times.backward_s, done)
            case ins.RunInputGradients(m):
                self._compute(who, word, times.input_gradients_s, ev.InputGradientsFinished(m))
            case ins.RunWeightGradients(m):
                self._compute(who, word, times.weight_gradients_s, ev.WeightGradientsFinished(m))
            case ins.RunUpdate(u):
                self._compute(who, word, times.update_s, ev.UpdateFinished(u))
            case ins.TakeSnapshot(r):
                self._compute(who, word, times.snapshot_s, ev.SnapshotFinished(r))
                samples = stage.machine.version * self._fleet.update_every * self._fleet.micro_batch
                self.after(times.snapshot_s, partial(self._rounds.contribute, who, r, samples))
            case ins.ApplyMerge(r):
                self._compute(who, word, times.merge_s, ev.MergeFinished(r))
            case ins.SendActivation(m):
                self._send(who, 1, word, times.activation_bytes, ev.ActivationArrived(m))
            case ins.SendGradient(m, r_or_none, norm_sq):
                event = ev.GradientArrived(m, r_or_none, norm_sq)
                self._send(who, -1, word, times.gradient_bytes, event, stage.tuned.passage(m))
            case ins.SendGlobalNorm(u, total):
                self._send(who, 1, word, 0, ev.GlobalNormArrived(u, total))
            case ins.ReportDrained(_, updates):
                self._report(who, word)
                drained = partial(self._rounds.drained, stage.cluster, updates)
                self.after(self._fleet.control_latency_s, drained)
            case ins.ReportRoundsFinished(r):
                self._report(who, word)
                stage.finished_round = r
            case ins.Fail(reason):
                raise RunFailed(f"{who}: {reason}")
            case _:
                raise RunFailed(f"{who}: nobody asked for an evaluation: {instruction}")

    def _compute(self, who: str, word: str, duration_s: float, finished: ev.Event) -> None:
        self._trace.append(TraceEvent(self.now_s, self.now_s + duration_s, who, word, "compute"))
        self.after(duration_s, partial(self.tell, who, finished))

    def _send(
        self, who: str, step: int, word: str, n_bytes: int, event: ev.Event, carried: Passage | None = None
    ) -> None:
        target = self._neighbour[who, step]
        self.transmit(who, target, Lane.PIPELINE, n_bytes, word, partial(self.tell, target, event, carried))

    def _stage(self, cluster: VirtualCluster, index: int) -> _Stage:
        def on_window(tuner: WindowTuner) -> None:
            self._windows.append((self.now_s, cluster.name, tuner.window))

        fleet = self._fleet
        shape = _shape(fleet, cluster, index)
        tuned = TunedStage(shape, fleet.largest_window, on_window, split=fleet.split_backward)
        tuned.may_split()
        return _Stage(cluster.name, cluster.stages[index], tuned)

    def _change_default_link(self, shape: LinkShape) -> None:
        self._default_link = shape
        for pair, link in self._links.items():
            if pair not in self._fleet.links:
                link.change(shape)

    def _report(self, who: str, word: str) -> None:
        self._trace.append(TraceEvent(self.now_s, self.now_s, who, word, "report"))

    def _count(self, cluster: str, version: int) -> None:
        samples = version * self._fleet.update_every * self._fleet.micro_batch
        self._samples[cluster] = samples
        self.after(self._fleet.control_latency_s, partial(self._rounds.trained, cluster, samples))
        if self._drain_s is None and sum(self._samples.values()) >= self._stop_samples:
            self._drain_s = self.now_s
            for each in self._fleet.clusters:
                drain = partial(self.tell, each.stage_names()[0], ev.DrainRequested())
                self.after(self._fleet.control_latency_s, drain)


def _shape(fleet: VirtualFleet, cluster: VirtualCluster, index: int) -> StageShape:
    return StageShape(
        stages=len(cluster.stages),
        index=index,
        update_every=fleet.update_every,
        max_staleness=fleet.max_staleness,
        window=cluster.window,
        max_lag=fleet.max_lag,
        clip=fleet.clip,
        schedule=fleet.schedule,
        room=(fleet.max_staleness + 1) * fleet.update_every + SPLIT_KEEPS
        if index and fleet.split_backward != "never"
        else 0,
    )
