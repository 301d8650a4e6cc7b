"""What a user asks of a run that goes on, from another terminal: to stop, to save, to evaluate.

In: the run's folder, and what is asked. Out: a request in the folder, which the run takes within a second, and, where
it is waited for, the run's answer: an event of metrics.jsonl, or its end.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ravnest.checkpoints.run_folder import RunFolder
from ravnest.checkpoints.run_lock import look_at_lock
from ravnest.driver.node_requests import RunKind, RunRequest, put_request
from ravnest.driver.observe.metrics_file import last_records
from ravnest.driver.observe.report import (
    CheckpointRefusedEvent,
    CheckpointWrittenEvent,
    ClusterLostEvent,
    EvaluatedEvent,
    RestartedEvent,
    RunEvent,
)
from ravnest.errors import InvalidInput
from ravnest.results.run_log import events_in, lines_since
from ravnest.results.run_state import find_run, run_state

_LOOK_S = 0.2


@dataclass(frozen=True)
class Asked:
    """A request that a run will take, and how far the run had come when it was made: a checkpoint or an evaluation that
    was under way then is not the answer. The end of the run answers all."""

    run: Path
    kind: RunKind
    metrics_bytes: int
    """Where its metrics.jsonl ended."""
    round: int = 0
    """The last committed one: 0 before the first."""
    samples: int = 0
    """Of the fleet."""

    def is_answered_by(self, event: RunEvent) -> bool:
        """Whether that is what was asked for: of a later round, of weights that have trained on more samples."""
        match event:
            case CheckpointWrittenEvent() | CheckpointRefusedEvent():
                return self.kind == "checkpoint" and event.round > self.round
            case EvaluatedEvent():
                return self.kind == "evaluate" and (event.final or event.samples > self.samples)
        return False

    def gone_back(self) -> "Asked":
        """The same, of a run that has fewer samples or rounds since: whatever comes next is the answer."""
        return replace(self, round=-1, samples=-1)


def ask(run: Path, kind: RunKind) -> Asked:
    """Ask a run that goes on. `run` may be a name in runs/.

    Raises InvalidInput where there is no such run, it has ended, or the request cannot be written.
    """
    path = require_running(run)
    metrics = RunFolder(path).metrics
    size = metrics.stat().st_size if metrics.exists() else 0
    last = last_records(metrics, ("round", "progress"))
    asked = Asked(path, kind, size, _count(last, "round", "round"), _count(last, "progress", "samples"))
    put_request(path, RunRequest(kind))
    return asked


def require_running(run: Path) -> Path:
    """The folder of a run that goes on, or, where its lock cannot be seen from here, may go on. Raises InvalidInput."""
    path = find_run(run)
    if look_at_lock(path)[0] in ("held", "unknown"):
        return path
    state = run_state(path).state
    raise InvalidInput(f"no run goes on here: it is {state}", path=str(path), hint=f"`ravnest status {path}` says more")


def answer(
    asked: Asked,
    within_s: float,
    *,
    now: Callable[[], float] = time.monotonic,
    wait: Callable[[float], None] = time.sleep,
) -> RunEvent | None:
    """Wait for the event that answers a request; None where the run ends before, or in `within_s` seconds nothing
    has come. `now` and `wait` are the clock, in seconds."""
    metrics, at = RunFolder(asked.run).metrics, asked.metrics_bytes
    until_s = now() + within_s
    while True:
        ended = look_at_lock(asked.run)[0] in ("free", "left")  # asked first: what it wrote before is read below
        lines, at = lines_since(metrics, at)
        for event in events_in(lines):
            if asked.is_answered_by(event):
                return event
            if isinstance(event, ClusterLostEvent | RestartedEvent):
                asked = asked.gone_back()
        if ended or now() >= until_s:
            return None
        wait(_LOOK_S)


def _count(records: Mapping[str, Mapping[str, object]], kind: str, key: str) -> int:
    found = records.get(kind, {}).get(key)
    return found if isinstance(found, int) else 0
