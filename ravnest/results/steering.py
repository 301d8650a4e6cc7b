"""What a user asks of a run that goes on, from another terminal: to stop, to save, to evaluate.

In: the run's folder, and what is asked. Out: a request in the folder, which the run takes within a second, and, where
it is waited for, the run's answer: an event of metrics.jsonl, or its end.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ravnest.checkpoints.run_folder import RunFolder
from ravnest.checkpoints.run_lock import look_at_lock
from ravnest.driver.node_requests import RunKind, RunRequest, put_request
from ravnest.driver.observe.report import CheckpointRefusedEvent, CheckpointWrittenEvent, EvaluatedEvent, RunEvent
from ravnest.errors import InvalidInput
from ravnest.results.run_log import events_in, lines_since
from ravnest.results.run_state import find_run, run_state

_LOOK_S = 0.2
_ANSWERS: dict[str, tuple[type[RunEvent], ...]] = {
    "checkpoint": (CheckpointWrittenEvent, CheckpointRefusedEvent),
    "evaluate": (EvaluatedEvent,),
}
"""By request: the events that answer it. The end of the run answers all."""


@dataclass(frozen=True)
class Asked:
    """A request that a run will take, and where its metrics.jsonl ended when it was made."""

    run: Path
    kind: RunKind
    metrics_bytes: int


def ask(run: Path, kind: RunKind) -> Asked:
    """Ask a run that goes on. `run` may be a name in runs/.

    Raises InvalidInput where there is no such run, it has ended, or the request cannot be written.
    """
    path = require_running(run)
    metrics = RunFolder(path).metrics
    asked = Asked(path, kind, metrics.stat().st_size if metrics.exists() else 0)
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
    wanted = _ANSWERS.get(asked.kind, ())
    metrics, at = RunFolder(asked.run).metrics, asked.metrics_bytes
    until_s = now() + within_s
    while True:
        ended = look_at_lock(asked.run)[0] in ("free", "left")  # asked first: what it wrote before is read below
        lines, at = lines_since(metrics, at)
        for event in events_in(lines):
            if isinstance(event, wanted):
                return event
        if ended or now() >= until_s:
            return None
        wait(_LOOK_S)
