"""Which stages of a run are lost: those whose process has ended, those that were silent for too long, and those whose
cluster computes nothing any more though all of it speaks. Pure.

In: which stage was heard, and the time. Out: the stages that are suspected, and those that are lost, each with a
sentence that names it and its node. What becomes of a run that has lost a stage is decided by `RunControl` (design §9).
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from cluster_planner import Plan
from ravnest.errors import NodeLost
from ravnest.pipeline import stage_place
from ravnest.stage.messages import ALIVE_EVERY_S, STALL_FLOOR_S
from ring_allreduce.rounds import SILENCE_FLOOR_S, SilenceDeadline

_STALL_FACTOR = 50.0

UNWATCHED_S = 4.0
"""A stage whose process nobody watches any more is given up if nothing is heard of it for most of this time."""

SUSPECTED_AT = 0.5
"""A stage is suspected when it has been silent for this part of its deadline."""

NOBODY_HEARD_S = 120.0
"""The longest time in which nobody is given up where nobody at all is heard."""


@dataclass(frozen=True)
class Suspicion:
    """A stage has been silent for `silent_s`, and is given up after `deadline_s`; or it is `heard_again` after that."""

    stage: str
    silent_s: float
    deadline_s: float
    heard_again: bool = False


class StageWatch:
    """Tells which stages are lost. A run without progress raises NodeLost, since nobody can be named for sure.

    Silence is measured against SilenceDeadline, which follows the gaps between a stage's messages. A run makes no
    progress when no stage has done any work for 50 times the usual gap, or at least STALL_FLOOR_S. The same holds of
    one cluster, whatever the others do: a computation that hangs stops its neighbours in the pipeline too, so only the
    cluster is known for sure. A cluster that rightly computes nothing, since it waits for others, is not counted.

    Where no stage at all is heard, it is more likely that this machine is cut off, or that all the others stood still,
    than that all have died at once; and nothing is left to go on with anyway. So for NOBODY_HEARD_S nobody is given up
    then, and as soon as one stage is heard the others have a whole deadline again.
    """

    def __init__(self, nodes: Mapping[str, str], now_s: float, *, round_trip_s: float = 0.0) -> None:
        """
        Arguments:
            nodes: by stage, the name of the node that runs it.
            now_s: the time, on the clock that all later times are of.
            round_trip_s: the planned round trip of the slowest cluster. Until anything is measured, it says how long
                one computation may take.
        """
        self._nodes = dict(nodes)
        self._silence = {stage: SilenceDeadline(now_s) for stage in nodes}
        self._stall_floor_s = max(STALL_FLOOR_S, _STALL_FACTOR * round_trip_s)
        self._progress = SilenceDeadline(now_s, floor_s=self._stall_floor_s, factor=_STALL_FACTOR)
        self._works = {stage_place(stage)[0]: self._work_deadline(now_s) for stage in nodes}
        """By cluster: by when one of its stages has to have computed something."""
        self._last_computed = dict.fromkeys(nodes, now_s)
        self._last_progress = dict.fromkeys(nodes, now_s)
        self._unwatched: dict[str, tuple[float, str]] = {}
        self._suspected: dict[str, float] = {}
        """By suspected stage: when it was last heard."""
        self._suspicions: list[Suspicion] = []
        """Those that nobody has asked for yet."""
        self._nobody_heard = False
        """Whether all stages have been silent past half of their deadlines."""

    def heard(self, stage: str, now_s: float, *, progress: bool) -> None:
        """A message of `stage` has come. `progress`: it says that work was done, not only that the stage lives."""
        if stage not in self._silence:
            return
        if (since_s := self._suspected.pop(stage, None)) is not None:
            limit_s = self._silence[stage].limit_s()
            self._suspicions.append(Suspicion(stage, now_s - since_s, limit_s, heard_again=True))
        if self._nobody_heard:
            self._nobody_heard = False
            for deadline in self._silence.values():
                deadline.rest(now_s)
            self._progress.rest(now_s)
            self._excuse(self._works, now_s)
        self._silence[stage].heard(now_s)
        if progress:
            self._progress.heard(now_s)
            self._last_progress[stage] = now_s

    def computed(self, stage: str, now_s: float) -> None:
        """The stage has finished computations since it was last heard."""
        if stage not in self._silence:
            return
        self._last_computed[stage] = now_s
        deadline = self._works[stage_place(stage)[0]]
        if deadline.silent_s(now_s) < 0.5 * ALIVE_EVERY_S:
            deadline.rest(now_s)  # stages that are heard together say nothing of how long a computation takes
        else:
            deadline.heard(now_s)

    def add(self, stage: str, node: str, now_s: float) -> None:
        """The stage is in the run from now on, on this node."""
        self._works[stage_place(stage)[0]] = self._work_deadline(now_s)
        self._last_computed[stage] = now_s
        self._nodes[stage] = node
        self._silence[stage] = SilenceDeadline(now_s)
        self._last_progress[stage] = now_s

    def forget(self, stage: str) -> None:
        """The stage is in the run no more: nothing is expected of it."""
        self._silence.pop(stage, None)
        self._suspected.pop(stage, None)
        self._unwatched.pop(stage, None)
        self._last_progress.pop(stage, None)
        self._last_computed.pop(stage, None)
        cluster = stage_place(stage)[0]
        if cluster not in {stage_place(each)[0] for each in self._silence}:
            self._works.pop(cluster, None)

    def only(self, stages: Collection[str]) -> None:
        """No others are in the run."""
        for stage in self._silence.keys() - set(stages):
            self.forget(stage)

    def unwatched(self, stage: str, reason: str, now_s: float) -> None:
        """Nobody watches the stage's process any more, for this reason: what is heard of it says whether it lives."""
        if stage in self._silence:
            self._unwatched[stage] = now_s, reason

    def called(self, stage: str) -> str:
        """How a message names the stage."""
        return f"stage {stage} on node {self._nodes[stage]!r}"

    def node(self, stage: str) -> str:
        """The node that runs the stage."""
        return self._nodes[stage]

    def silent_s(self, stage: str, now_s: float) -> float | None:
        """For how long nothing was heard of the stage; None where it is not watched."""
        return self._silence[stage].silent_s(now_s) if stage in self._silence else None

    def hung(self, now_s: float, *, excused: bool = False, resting: Collection[str] = ()) -> list[tuple[str, str]]:
        """The clusters of which no stage has computed anything past their deadlines: of each the stage that stopped
        first, with a sentence that says so. Where all have stopped, it is for `silent` to say.

        To be asked before `silent`. `excused`: as there. `resting`: the clusters that may rightly compute nothing.
        Where those wait for the others and the run has made no progress for too long, one of the others is lost
        whatever its own deadline. After a loss all have a whole deadline again.
        """
        self._excuse(self._works if excused or self._nobody_heard else resting, now_s)
        late = [name for name in self._works if self._works[name].expired(now_s) and self._others_work(name, now_s)]
        counted = [name for name in self._works if name not in resting]
        if not late and counted and len(counted) < len(self._works) and self._stalled(now_s):
            late = [max(counted, key=lambda name: self._works[name].silent_s(now_s))]
        found = []
        for name in late:
            stages = [each for each in self._last_computed if stage_place(each)[0] == name]
            first = min(stages, key=lambda each: self._last_computed[each])
            seconds = self._works[name].silent_s(now_s)
            said = f"{self.called(first)} answers, but no stage of {name} has computed anything for {seconds:.0f} s"
            found.append((first, f"{said}, and this one stopped first"))
        if found:
            self._excuse(self._works, now_s)
            self._progress.rest(now_s)
        return found

    def silent(self, now_s: float, *, excused: bool = False) -> list[tuple[str, str]]:
        """The stages that have been silent past their deadlines, each with a sentence that says so.

        `excused`: this process is writing to its disk, for which stages may be waiting. Raises NodeLost for a run that
        makes no progress and is not excused.
        """
        self._suspect(now_s)
        wait = self._nobody_heard and min(each.silent_s(now_s) for each in self._silence.values()) < NOBODY_HEARD_S
        lost = [
            (
                stage,
                f"{self.called(stage)} has been silent for {deadline.silent_s(now_s):.0f} s"
                f" (its deadline is {deadline.limit_s():.0f} s)",
            )
            for stage, deadline in self._silence.items()
            if not wait and deadline.expired(now_s)
        ]
        for stage in [each for each, (since_s, _) in self._unwatched.items() if now_s - since_s >= UNWATCHED_S]:
            _, reason = self._unwatched.pop(stage)
            if self._silence[stage].silent_s(now_s) > 0.75 * UNWATCHED_S:
                lost.append((stage, f"{self.called(stage)} died: {reason}"))
        if (excused or wait) and self._progress.expired(now_s):
            self._progress.heard(now_s)
        if not lost and self._stalled(now_s):
            oldest = min(self._last_progress, key=lambda stage: self._last_progress[stage])
            raise NodeLost(
                f"no stage has made progress for {self._progress.silent_s(now_s):.0f} s; the one that stopped first is"
                f" {self.called(oldest)}"
            )
        return lost

    def suspicions(self) -> list[Suspicion]:
        """What stages have come under suspicion since the last call, and which were heard again."""
        told, self._suspicions = self._suspicions, []
        return told

    def _stalled(self, now_s: float) -> bool:
        """Whether there was no progress for longer than the run, and than each cluster by itself, usually takes."""
        silent_s = self._progress.silent_s(now_s)
        return self._progress.expired(now_s) and all(silent_s > each.limit_s() for each in self._works.values())

    def _others_work(self, cluster: str, now_s: float) -> bool:
        """Whether some other cluster has computed, or rightly rested, for much of the time in which this has not."""
        silent_s = self._works[cluster].silent_s(now_s)
        return any(2.0 * each.silent_s(now_s) < silent_s for name, each in self._works.items() if name != cluster)

    def _work_deadline(self, now_s: float) -> SilenceDeadline:
        return SilenceDeadline(now_s, floor_s=self._stall_floor_s, factor=_STALL_FACTOR)

    def _excuse(self, clusters: Collection[str], now_s: float) -> None:
        """What these clusters have not computed until now does not count."""
        for name in clusters:
            if name in self._works:
                self._works[name].rest(now_s)

    def _suspect(self, now_s: float) -> None:
        silent = [stage for stage, deadline in self._silence.items() if _half_over(deadline, now_s)]
        for stage in [each for each in silent if each not in self._suspected]:
            deadline = self._silence[stage]
            self._suspected[stage] = now_s - deadline.silent_s(now_s)
            self._suspicions.append(Suspicion(stage, deadline.silent_s(now_s), deadline.limit_s()))
        self._nobody_heard = bool(silent) and len(silent) == len(self._silence)


def _half_over(deadline: SilenceDeadline, now_s: float) -> bool:
    silent_s = deadline.silent_s(now_s)
    # Asked each turn: what is below the floor is spared two medians.
    return silent_s > SUSPECTED_AT * SILENCE_FLOOR_S and silent_s > SUSPECTED_AT * deadline.limit_s()


def stage_watch(plan: Plan, nodes: Mapping[str, str], now_s: float, *, speed: float = 1.0) -> StageWatch:
    """The watch over the stages of a run.

    `nodes` names the node of each stage. `speed`: see session.py. A slow imitation makes round trips longer,
    but a fast one makes no deadline shorter, because this machine may be slower than those that it imitates.
    """
    round_trip_s = max(cluster.round_trip_s for cluster in plan.predicted.clusters)
    return StageWatch(nodes, now_s, round_trip_s=round_trip_s / min(1.0, speed))
