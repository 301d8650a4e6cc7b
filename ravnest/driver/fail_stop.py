"""Who is in the run. An interface with one implementation so far: fail-stop, where any loss ends the run.

Decides from news of deaths and from silence who is lost. Pure: the news and the time are passed in. A successor that
replaces a stage or lets a cluster go implements the same two methods (design §9).
"""

from collections.abc import Mapping
from typing import Protocol

from ravnest.errors import NodeLost
from ravnest.stage.messages import STALL_FLOOR_S
from ring_allreduce.rounds import SilenceDeadline

_STALL_FACTOR = 50.0


class FailurePolicy(Protocol):
    """Told what was heard and who ended; answers by raising, or not."""

    def heard(self, stage: str, now_s: float, *, progress: bool) -> None:
        """A message came; `progress` when it says that work was done, and not only that the stage lives."""
        ...

    def ended(self, stage: str, reason: str) -> None:
        """The stage's process is gone though the run goes on. Raises NodeLost where that ends the run."""
        ...

    def check(self, now_s: float) -> None:
        """Raises NodeLost for a stage that was silent past its deadline, or a run that stands still."""
        ...


class FailStop:
    """Any death, silence or stall ends the run, named."""

    def __init__(self, nodes: Mapping[str, str], now_s: float, *, round_trip_s: float = 0.0) -> None:
        """`nodes`: stage → the name of the node that runs it. `round_trip_s`: the slowest cluster's, as planned: until
        something was measured, it says how long one computation may take."""
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
