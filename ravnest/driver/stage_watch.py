"""Which stages of a run are lost: those whose process has ended, and those that were silent for too long. Pure.

In: which stage was heard, and the time. Out: the stages that are lost, each with a sentence that names it and its node.
What becomes of a run that has lost a stage is decided by `RunControl` (design §9).
"""

from collections.abc import Collection, Mapping

from ravnest.errors import NodeLost
from ravnest.stage.messages import STALL_FLOOR_S
from ring_allreduce.rounds import SilenceDeadline

_STALL_FACTOR = 50.0

UNWATCHED_S = 4.0
"""A stage whose process nobody watches any more is given up if nothing is heard of it for most of this time."""


class StageWatch:
    """Tells which stages are lost. A run without progress raises NodeLost, since nobody can be named for sure.

    Silence is measured against SilenceDeadline, which follows the gaps between a stage's messages. A run makes no
    progress when no stage has done any work for 50 times the usual gap, or at least STALL_FLOOR_S.
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

    def heard(self, stage: str, now_s: float, *, progress: bool) -> None:
        """A message of `stage` has come. `progress`: it says that work was done, not only that the stage lives."""
        if stage not in self._silence:
            return
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

    def silent(self, now_s: float, *, excused: bool = False) -> list[tuple[str, str]]:
        """The stages that have been silent past their deadlines, each with a sentence that says so.

        `excused`: this process is writing to its disk, for which stages may be waiting. Raises NodeLost for a run that
        makes no progress and is not excused.
        """
        lost = [
            (
                stage,
                f"{self.called(stage)} has been silent for {deadline.silent_s(now_s):.0f} s"
                f" (its deadline is {deadline.limit_s():.0f} s)",
            )
            for stage, deadline in self._silence.items()
            if deadline.expired(now_s)
        ]
        for stage in [each for each, (since_s, _) in self._unwatched.items() if now_s - since_s >= UNWATCHED_S]:
            _, reason = self._unwatched.pop(stage)
            if self._silence[stage].silent_s(now_s) > 0.75 * UNWATCHED_S:
                lost.append((stage, f"{self.called(stage)} died: {reason}"))
        if excused and self._progress.expired(now_s):
            self._progress.heard(now_s)
        if not lost and self._progress.expired(now_s):
            oldest = min(self._last_progress, key=lambda stage: self._last_progress[stage])
            raise NodeLost(
                f"no stage has made progress for {self._progress.silent_s(now_s):.0f} s; the one that stopped first is"
                f" {self.called(oldest)}"
            )
        return lost
