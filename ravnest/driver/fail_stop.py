"""Fail-stop, the membership of a run in its smallest form: the loss of any stage ends the run. Pure.

In: which stage was heard, which process has ended, and the time. Out: a `NodeLost` that names the stage and its node.
The rule follows an interface, so that another one can replace a stage or let a cluster go (design §9).
"""

from collections.abc import Mapping
from typing import Protocol

from ravnest.errors import NodeLost
from ravnest.stage.messages import STALL_FLOOR_S
from ring_allreduce.rounds import SilenceDeadline

_STALL_FACTOR = 50.0


class FailurePolicy(Protocol):
    """Decides whether a run goes on. It is told what was heard and who has ended, and raises where the run ends."""

    def heard(self, stage: str, now_s: float, *, progress: bool) -> None:
        """A message of `stage` has come. `progress`: it says that work was done, not only that the stage lives."""
        ...

    def ended(self, stage: str, reason: str) -> None:
        """The process of `stage` has ended before the run was over. Raises NodeLost where that ends the run."""
        ...

    def check(self, now_s: float) -> None:
        """Raises NodeLost for a stage that was silent past its deadline, or for a run that makes no progress."""
        ...


class FailStop:
    """The end of a process, silence past a deadline, or a run without progress raises NodeLost.

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
        self._nodes = nodes
        self._silence = {stage: SilenceDeadline(now_s) for stage in nodes}
        self._progress = SilenceDeadline(
            now_s, floor_s=max(STALL_FLOOR_S, _STALL_FACTOR * round_trip_s), factor=_STALL_FACTOR
        )
        self._last_progress = dict.fromkeys(nodes, now_s)

    def heard(self, stage: str, now_s: float, *, progress: bool) -> None:
        self._silence[stage].heard(now_s)
        if progress:
            self._progress.heard(now_s)
            self._last_progress[stage] = now_s

    def ended(self, stage: str, reason: str) -> None:
        raise NodeLost(f"{self._called(stage)} died: {reason}")

    def check(self, now_s: float) -> None:
        for stage, deadline in self._silence.items():
            if deadline.expired(now_s):
                raise NodeLost(
                    f"{self._called(stage)} has been silent for {deadline.silent_s(now_s):.0f} s"
                    f" (its deadline is {deadline.limit_s():.0f} s)"
                )
        if self._progress.expired(now_s):
            oldest = min(self._last_progress, key=lambda stage: self._last_progress[stage])
            raise NodeLost(
                f"no stage has made progress for {self._progress.silent_s(now_s):.0f} s; the one that stopped first is"
                f" {self._called(oldest)}"
            )

    def _called(self, stage: str) -> str:
        return f"stage {stage} on node {self._nodes[stage]!r}"
