"""What a run's folder tells of the run: whether it goes on, how far it has come, and what it has left.

In: the folder, which is only read. Out: a `RunState`. Its lock tells who lives (checkpoints/run_lock.py), the end of
metrics.jsonl how far it is, and summary.json how it ended.
"""

import difflib
import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ravnest.checkpoints.checkpoint import LATEST, name_of_latest
from ravnest.checkpoints.run_folder import RUNS, RunFolder
from ravnest.checkpoints.run_lock import LOCK, LockState, look_at_lock
from ravnest.driver.observe.metrics_file import last_record, last_records
from ravnest.driver.observe.report import ProgressEvent
from ravnest.errors import InvalidInput
from ravnest.results.run_log import last_progress

State = Literal["running", "finished", "stopped", "stopped at once", "failed", "killed", "unknown", "damaged"]
MEANING: Mapping[State, str] = {
    "running": "its process lives",
    "finished": "it came to its end",
    "stopped": "it was stopped with a checkpoint: --resume goes on",
    "stopped at once": "it ended as asked, with no new checkpoint: --resume goes on from its last one, if any",
    "failed": "it ended with an error",
    "killed": "its process ended without a word, as by a kill, a crash or a loss of power",
    "unknown": "its lock cannot be seen here: it may be running on another machine",
    "damaged": "its metrics.jsonl cannot be read, and `ravnest status` of it says why",
}
_LAST_PHASE = "saving"
_KINDS = ("phase", "evaluated")


@dataclass(frozen=True)
class RunState:
    """One run, as its folder shows it. What is not known is None."""

    path: Path
    state: State
    is_rehearsal: bool
    owner: str | None
    """The process that runs it, or of a killed or unknown run the last one that did, in words."""
    phase: str | None
    """The last one that was written down; None of a running one that has not come to its first in this session."""
    progress: ProgressEvent | None
    """The last one that was written down, with the last loss of each cluster."""
    held_out_loss: float | None
    held_out_samples: int | None
    """The samples that the fleet had trained on then."""
    checkpoint: str | None
    """The name of the last complete one."""
    checkpoint_age_s: float | None
    silent_s: float | None
    """How long ago metrics.jsonl was last written to."""
    logs: tuple[str, ...]
    """The files in logs/: tracebacks of stages that failed, and what Ray said."""
    reason: str | None = None
    """Of a run that has failed: why, as far as it could still write that down."""


def run_state(path: Path, now_s: float | None = None) -> RunState:
    """Return the state of the run in the folder `path`; `now_s` is the time of day, by default this machine's.

    Raises InvalidInput where no run is there, or its metrics cannot be read.
    """
    folder = RunFolder(path)
    if not is_run(path):
        raise InvalidInput(f"no run is here: {_missing(path)}", path=str(path))
    now_s = time.time() if now_s is None else now_s
    lock, owner = look_at_lock(path)
    last = last_records(folder.metrics, _KINDS)
    phase = None if lock == "held" and _starts(path, last.get("phase")) else last.get("phase", {}).get("name")
    evaluated = last.get("evaluated", {})
    loss, samples = evaluated.get("loss"), evaluated.get("samples")
    end = _end(folder.metrics) if lock == "free" else None
    state = state_of(
        lock,
        None if phase is None else str(phase),
        stopped_early=_stopped_early(folder.summary),
        at_once=end is not None and end.get("at_once") is True,
    )
    return RunState(
        path=path,
        state=state,
        is_rehearsal=folder.is_rehearsal,
        owner=None if owner is None else str(owner),
        phase=None if phase is None else str(phase),
        progress=last_progress(folder.metrics),
        held_out_loss=loss if isinstance(loss, float | int) else None,
        held_out_samples=samples if isinstance(samples, int) else None,
        checkpoint=name_of_latest(folder.checkpoints) if folder.has_checkpoint else None,
        checkpoint_age_s=_age_s(folder.checkpoints / LATEST, now_s),
        silent_s=_age_s(folder.metrics, now_s),
        logs=tuple(sorted(one.name for one in folder.ray_log.parent.glob("*.log"))),
        reason=str(end["reason"]) if end is not None and "reason" in end and state == "failed" else None,
    )


def _starts(path: Path, phase: Mapping[str, object] | None) -> bool:
    """Whether a run that goes on has written nothing of this session but what comes before a phase."""
    metrics = RunFolder(path).metrics
    last, lock, wrote = last_record(metrics), _stat(path / LOCK), _stat(metrics)
    if (
        phase is None
        or last is None
        or (lock is not None and wrote is not None and wrote.st_mtime_ns < lock.st_mtime_ns)
    ):
        return True
    return last["kind"] == "failed" or float(str(last["at_s"])) < float(str(phase["at_s"])) - 1.0


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None


def _end(metrics: Path) -> Mapping[str, object] | None:
    """What a run that has ended without its result has written down of that, as the last of all."""
    last = last_record(metrics)
    return last if last is not None and last["kind"] == "failed" else None


def state_of(lock: LockState, phase: str | None, *, stopped_early: bool | None, at_once: bool = False) -> State:
    """Return what a run does, by its lock, the last phase that it wrote down, its summary (None: it has none), and
    whether the last that it wrote down is that its user has ended it at once."""
    if lock == "held":
        return "running"
    if lock == "left":
        return "killed"
    if lock == "unknown":
        return "unknown"
    if at_once:
        return "stopped at once"
    if phase != _LAST_PHASE or stopped_early is None:
        return "failed"
    return "stopped" if stopped_early else "finished"


def is_run(path: Path) -> bool:
    """Whether a run has begun in this folder."""
    return path.is_dir() and RunFolder(path).plan.is_file() and any((path / name).exists() for name in _TRACES)


_TRACES = (LOCK, "metrics.jsonl", "summary.json", "checkpoints", "logs")


def find_run(given: Path) -> Path:
    """Return the folder of the run that the user means: `given`, or the run of that name in runs/.

    Raises InvalidInput, which names the run that is spelt most alike, where there is none.
    """
    path = next((each for each in (given, RUNS / given) if is_run(each)), None)
    if path is not None:
        return path
    beside = given.parent if given.name and given.parent != Path() else RUNS
    names = sorted(each.name for each in beside.iterdir() if is_run(each)) if beside.is_dir() else []
    like = difflib.get_close_matches(given.name, names, n=1)
    if like:
        hint = f"did you mean {beside / like[0]}?"
    else:
        expected = f"expected a run's folder, or its name in {RUNS}/"
        there = f"{', '.join(names[-MOST_NAMED:])} (`ravnest runs {beside}` says more)" if names else "no run"
        hint = f"{expected}; in {beside}/ there is {there}"
    raise InvalidInput(f"no run is here: {_missing(given)}", path=str(given), hint=hint)


MOST_NAMED = 6
"""So many runs are named to somebody who has named none: the last by name, which begins with the day."""


def _missing(path: Path) -> str:
    """What a folder lacks that is no run's."""
    if not path.exists():
        return "there is no such folder"
    if RunFolder(path).plan.is_file():
        return "it has a plan.yaml, and nothing has begun"
    return "its plan.yaml is missing"


def states_in(folder: Path) -> list[RunState]:
    """Return the states of all runs in a folder, such as runs/, the one that wrote last at the end. A run whose metrics
    cannot be read is among them, as damaged.

    Raises InvalidInput where there is no such folder, and where it is a run's own.
    """
    if is_run(folder):
        raise InvalidInput(
            "is a run; expected the folder that runs lie in",
            path=str(folder),
            hint=f"`ravnest status {folder}` says how it is",
        )
    if not folder.is_dir():
        raise InvalidInput("no such folder", path=str(folder), hint="runs are in runs/ where the command was run")
    found = [_state_or_damaged(path) for path in folder.iterdir() if is_run(path)]
    return sorted(found, key=lambda run: -1.0 if run.silent_s is None else -run.silent_s)


def _state_or_damaged(path: Path) -> RunState:
    try:
        return run_state(path)
    except InvalidInput:
        return RunState(
            path=path,
            state="damaged",
            is_rehearsal=RunFolder(path).is_rehearsal,
            owner=None,
            phase=None,
            progress=None,
            held_out_loss=None,
            held_out_samples=None,
            checkpoint=None,
            checkpoint_age_s=None,
            silent_s=_age_s(RunFolder(path).metrics, time.time()),
            logs=(),
        )


def _stopped_early(summary: Path) -> bool | None:
    try:
        return bool(json.loads(summary.read_text(encoding="utf-8"))["stopped_early"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None  # the run has not come to its end


def _age_s(path: Path, now_s: float) -> float | None:
    found = _stat(path)
    return None if found is None else max(0.0, now_s - found.st_mtime)
