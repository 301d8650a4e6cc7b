"""Which stages of a run are lost: those whose process has ended, and those that were silent for too long. Pure.

In: which stage was heard, and the time. Out: the stages that are suspected, and those that are lost, each with a
sentence that names it and its node. What becomes of a run that has lost a stage is decided by `RunControl` (design §9).
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ravnest.errors import NodeLost
from ravnest.stage.messages import STALL_FLOOR_S
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
    progress when no stage has done any work for 50 times the usual gap, or at least STALL_FLOOR_S.

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
        self._progress = SilenceDeadline(
            now_s, floor_s=max(STALL_FLOOR_S, _STALL_FACTOR * round_trip_s), factor=_STALL_FACTOR
        )
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
        self._silence[stage].heard(now_s)
        if progress:
            self._progress.heard(now_s)
            self._last_progress[stage] = now_s

    def add(self, stage: str, node: str, now_s: float) -> None:
        """The stage is in the run from now on, on this node."""
        self._nodes[stage] = node
        self._silence[stage] = SilenceDeadline(now_s)
        self._last_progress[stage] = now_s

    def forget(self, stage: str) -> None:
        """The stage is in the run no more: nothing is expected of it."""
        self._silence.pop(stage, None)
        self._suspected.pop(stage, None)
        self._unwatched.pop(stage, None)
        self._last_progress.pop(stage, None)

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
        if not lost and self._progress.expired(now_s):
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
