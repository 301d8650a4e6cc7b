"""A run under the virtual clock: the stage, ring and round machines of a whole fleet, and the driver around them.

In: a `VirtualFleet`, and when to stop. Out: a `VirtualResult`. What happens is decided by the state machines of a real
run; stage.py says when computations end, and network.py when messages arrive. The run is deterministic and has neither
tensors nor threads. Evaluation is not modelled.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import pairwise
from typing import Any

from cluster_planner import SPLIT_KEEPS
from ravnest.errors import RunFailed
from ravnest.pipeline import events as ev
from ravnest.pipeline import stage_name
from ravnest.pipeline.controllers import WindowTuner
from ravnest.pipeline.stage_shape import StageShape
from ravnest.pipeline.tuned_stage import TunedStage
from ravnest.simulator.clock import Action, VirtualClock
from ravnest.simulator.fleet import VirtualCluster, VirtualFleet
from ravnest.simulator.network import VirtualNetwork
from ravnest.simulator.rounds import VirtualRounds
from ravnest.simulator.stage import RunningStage, SimulatedWorld, Slowness, StageSettings
from ravnest.simulator.trace import VirtualResult, VirtualTrace


class VirtualRun:
    """One run of a fleet, from the first injection to the last merge. `run` may be called once."""

    def __init__(
        self,
        fleet: VirtualFleet,
        *,
        traced: bool = True,
        slowness: Callable[[str], Slowness | None] | None = None,
        seed: int = 0,
        start_s: float = 0.0,
    ) -> None:
        """
        Arguments:
            traced: keep every computation and message, which takes most of the time of a run.
            slowness: gives that of a stage, by its name; without it every computation takes as long as stated.
            seed: of the links' jitter.
            start_s: the moment at which the run begins.
        """
        self.clock = VirtualClock(start_s)
        self.network = VirtualNetwork(fleet, self.clock, seed)
        self._fleet = fleet
        self._trace = VirtualTrace(self.clock) if traced else None
        self._world = SimulatedWorld(self.clock, self.network, self._trace)
        self._slowness_of = slowness
        self._slowness: dict[str, Slowness | None] = {}
        """By stage name: it goes on where others take the place of a lost stage."""
        self.stages: dict[str, RunningStage] = {}
        """By name: the stages that are in the run, and of a lost cluster those that were."""
        self._past: dict[str, list[RunningStage]] = {}
        """By name: those that were lost, where others have taken their places."""
        for cluster in fleet.clusters:
            self._start(cluster, joins=False)
        self.rounds = VirtualRounds(fleet, self.stages, self._world)
        self.rounds.on_late = self._count
        self.rounds.on_left = self.lose
        self.samples = dict.fromkeys((cluster.name for cluster in fleet.clusters), 0)
        """Of each cluster: samples whose gradients its first stage has applied."""
        self.total_samples = 0
        """The same of the whole fleet."""
        self.on_samples: Callable[[str, int], None] | None = None
        """Is called with a cluster and its samples after each update of the cluster's first stage."""
        self.on_drain: Callable[[], None] | None = None
        """Is called when training is told to stop."""
        self._windows: list[tuple[float, str, int]] = []
        self._stop_samples = 0
        self._drain_s: float | None = None
        self.all_lost_s: float | None = None
        """When the last cluster was lost that trained; None as long as one is left."""

    def run(
        self,
        stop_samples: int | None = None,
        *,
        stop_s: float | None = None,
        doing: Sequence[tuple[float, Action, Any]] = (),
        on_progress: Callable[[], None] | None = None,
    ) -> VirtualResult:
        """Train until the fleet has made `stop_samples`, or until `stop_s`; then drain, and finish the rounds.

        Arguments:
            doing: what else is to happen: the moment in seconds, a function, and its argument.
            on_progress: is called every PROGRESS_EVERY events (see clock.py).

        Raises:
            RunFailed: a machine fails, or all wait for each other. Both are bugs.
        """
        self._stop_samples = stop_samples if stop_samples is not None else 1 << 62
        if self._fleet.later_link is not None:
            at_s, shape = self._fleet.later_link
            self.clock.at(at_s, self.network.change_link, shape)
        for at_s, action, argument in doing:
            self.clock.at(at_s, action, argument)
        if stop_s is not None:
            self.clock.at(stop_s, self._drain, None)
        for stage in self.stages.values():
            stage.tell(ev.Started())
        self.clock.run(on_progress)
        left = {who: stage for who, stage in self.stages.items() if not stage.dead}
        waiting = [
            f"{who} at update {stage.machine.version}"
            for who, stage in left.items()
            if stage.finished_round != self.rounds.opened
        ]
        if waiting or self._drain_s is None:
            raise RunFailed(f"nothing more can happen, but the end is not reached: {', '.join(waiting)}")
        return VirtualResult(
            trace=self._trace.events if self._trace is not None else (),
            micro_batch=self._fleet.micro_batch,
            drain_s=self._drain_s,
            end_s=max((stage.finished_s for stage in left.values()), default=self._drain_s),
            staleness={who: self._staleness(who) for who in self.stages},
            seconds=self.seconds(),
            windows=tuple(self._windows),
        )

    def lose(self, who: str, reason: str, *, returns: bool = False) -> None:
        """The driver notices that a stage is lost: its cluster leaves the run, which ends where no other trains.

        What it had not averaged does not count any more. `returns`: warm spares take all places that are lost.
        """
        cluster, vanished = self.stages[who].cluster, self.rounds.handed.vanished
        if not self.rounds.lose(who, reason, returns=returns):
            self.all_lost_s = self.clock.now_s
            self._mark_drain()
        if self._fleet.rings:
            for name in (cluster,) if self.all_lost_s is None else self.samples:
                self._count(name, self.rounds.goes_on_at(name))
            for name in self.samples.keys() - set(self.rounds.clusters):  # who had taken what they made may be lost
                self._count(name, self.rounds.goes_on_at(name))
            self.total_samples -= self.rounds.handed.vanished - vanished

    def join(self, cluster: str, fleet: VirtualFleet | None = None, held: Collection[tuple[str, str]] = ()) -> None:
        """The processes of a cluster that was lost, or is new, listen: it follows the rounds, and trains when it holds
        the anchor.

        `fleet`: as it is now, where the cluster's stages are on other nodes than before. Its rings are the same.
        `held`: the segments that need not be sent to it, as (stage, ring).
        """
        self.samples.setdefault(cluster, 0)
        if fleet is not None:
            self._fleet = fleet
        [virtual] = [each for each in self._fleet.clusters if each.name == cluster]
        if fleet is not None:
            self.network.move(fleet, virtual.stage_names())
        self.rounds.join(cluster, self._start(virtual, joins=True), self._fleet, held)

    def leave(self, cluster: str, reason: str) -> bool:
        """A cluster leaves with notice: it drains, what it has made is averaged, and then `on_left` is called.

        Returns False where it does not, since no other cluster would train.
        """
        if cluster in self.rounds.following:
            self.lose(stage_name(cluster, 0), reason)
            return True
        if not self.rounds.leave(cluster, reason):
            return False
        self.rounds.control(self.stages[stage_name(cluster, 0)].tell, ev.DrainRequested())
        return True

    def incarnations(self, who: str) -> list[RunningStage]:
        """Return all that have been the stage of this name, in order."""
        return [*self._past.get(who, ()), self.stages[who]]

    def stalled(self, who: str) -> dict[str, float]:
        """Return for how long a stage's node stalled, by what the stage was doing."""
        total: dict[str, float] = {}
        for each in self.incarnations(who):
            for state, spent_s in each.stalled_s.items():
                total[state] = total.get(state, 0.0) + spent_s
        return total

    def _start(self, cluster: VirtualCluster, *, joins: bool) -> list[RunningStage]:
        names = cluster.stage_names()
        for who in names:
            if who not in self._slowness:
                self._slowness[who] = None if self._slowness_of is None else self._slowness_of(who)
        made = [self._stage(cluster, index, self._slowness[who], joins=joins) for index, who in enumerate(names)]
        for stage in made:
            if stage.who in self.stages:
                self._past.setdefault(stage.who, []).append(self.stages[stage.who])
            self.stages[stage.who] = stage
        for before, after in pairwise(made):
            before.after, after.before = after, before
        return made

    def end(self) -> None:
        """Training ends now, whatever was asked for: the pipelines drain, and the rounds are finished."""
        self._drain(None)

    @property
    def draining(self) -> bool:
        """Whether training has been told to stop."""
        return self._drain_s is not None

    @property
    def over(self) -> bool:
        """Whether every stage that is left has merged the last round, or none is left."""
        last = self.rounds.opened
        return self.draining and all(each.dead or each.finished_round == last for each in self.stages.values())

    def seconds(self) -> dict[str, dict[str, float]]:
        """Return each stage's ledger of time so far, by state, in seconds. A computation that is running is not
        counted.
        """
        return {
            who: {
                state: sum(each.machine.ledger.seconds[state] for each in self.incarnations(who))
                for state in stage.machine.ledger.seconds
            }
            for who, stage in self.stages.items()
        }

    def _staleness(self, who: str) -> Mapping[int, int]:
        total: Counter[int] = Counter()
        for each in self.incarnations(who):
            total.update(each.machine.staleness)
        return dict(total)

    # What stages tell (stage.StageObserver).

    def updated(self, stage: RunningStage) -> None:
        """See StageObserver: count the samples, tell the driver, and stop the run where it has made enough."""
        samples = self._samples_of(stage)
        self._count(stage.cluster, samples)
        self.rounds.control(self.rounds.trained, (stage.cluster, samples))
        if self.on_samples is not None:
            self.on_samples(stage.cluster, samples)
        if self.total_samples >= self._stop_samples:
            self._drain(None)

    def _count(self, cluster: str, samples: int) -> None:
        self.total_samples += samples - self.samples[cluster]
        self.samples[cluster] = samples

    def contributed(self, stage: RunningStage, number: int) -> None:
        """See StageObserver."""
        self.rounds.contributed(stage, number, self._samples_of(stage))

    def drained(self, stage: RunningStage, updates: int) -> None:
        """See StageObserver: tell the driver."""
        self.rounds.control(self.rounds.drained, (stage.cluster, updates))

    def _samples_of(self, stage: RunningStage) -> int:
        return stage.machine.version * self._fleet.update_every * self._fleet.micro_batch

    def _drain(self, _: None) -> None:
        if self._mark_drain():
            self.rounds.leaving.clear()  # all of them finish the last round together
            for name in self.rounds.training:
                self.rounds.control(self.stages[stage_name(name, 0)].tell, ev.DrainRequested())
            for name in self.rounds.following:  # it has nothing to give, and nobody waits for it any more
                self.rounds.lose(stage_name(name, 0), "the run ends before it has begun to train")

    def _mark_drain(self) -> bool:
        """Training ends now. Returns False where it has ended before."""
        if self._drain_s is not None:
            return False
        self._drain_s = self.clock.now_s
        if self.on_drain is not None:
            self.on_drain()
        return True

    def _stage(self, cluster: VirtualCluster, index: int, slowness: Slowness | None, *, joins: bool) -> RunningStage:
        def on_window(tuner: WindowTuner) -> None:
            self._windows.append((self.clock.now_s, cluster.name, tuner.window))

        fleet = self._fleet
        largest = fleet.largest_window if cluster.largest_window is None else cluster.largest_window
        tuned = TunedStage(_shape(fleet, cluster, index), largest, on_window, split=fleet.split_backward)
        tuned.may_split()
        who = cluster.stage_names()[index]
        settings = StageSettings(who, cluster.name, cluster.stages[index], fleet.clip, slowness)
        return RunningStage(settings, tuned, self, self._world, joins=joins)


def _shape(fleet: VirtualFleet, cluster: VirtualCluster, index: int) -> StageShape:
    room = cluster.stages[index].room
    if room is None:
        room = (fleet.max_staleness + 1) * fleet.update_every + SPLIT_KEEPS
    return StageShape(
        stages=len(cluster.stages),
        index=index,
        update_every=fleet.update_every,
        max_staleness=fleet.max_staleness,
        window=cluster.window,
        max_lag=fleet.max_lag,
        clip=fleet.clip,
        schedule=fleet.schedule,
        room=room if index and fleet.split_backward != "never" else 0,
    )
