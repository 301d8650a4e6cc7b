"""A run's folder, followed for a page while the run writes it.

In: the folder, which is only read. Out: the page's document and curves as of the last look. Each look reads what has
come since; the past of a long run comes thinned (ravnest/results/run_records.py).
"""

import json
import time
from collections.abc import Mapping
from pathlib import Path

from cluster_planner import load_plan
from ravnest.checkpoints.run_folder import RunFolder
from ravnest.checkpoints.run_lock import LOCK, look_at_lock
from ravnest.errors import InvalidInput
from ravnest.page.run_view import RunView, Words
from ravnest.results.run_records import RunRecords
from ravnest.results.run_state import State, state_of

_NOT_BEGUN = "it has not begun: there is no plan.yaml yet"
_MOST_PLAN_BYTES = 64 * 1024 * 1024


class FollowedRun:
    """One run. Its methods are called by one thread at a time."""

    def __init__(self, path: Path, words: Words) -> None:
        self.path = path
        self._folder = RunFolder(path)
        self._words = words
        self._view: RunView | None = None
        self._planned: tuple[int, int] | None = None
        self._records = RunRecords(self._folder.metrics)
        self._outcome: Mapping[str, object] = {}
        self.problem: str | None = _NOT_BEGUN
        """Why nothing can be shown, in words; None where it can."""

    @property
    def behind(self) -> bool:
        """Whether there is more than was read."""
        return self._view is not None and self._records.behind

    def look(self) -> None:
        """Read what has come since the last look."""
        planned = _stamp(self._folder.plan)
        if planned != self._planned:  # it has begun, or goes on with another plan
            self._begin(planned)
        if self._view is None:
            return
        records = self._records.news()
        if records is None:
            self._begin(planned)  # a run that had failed was begun anew
            return
        for record in records:
            if isinstance(record, InvalidInput):
                self._view.damaged += 1
            else:
                self._view.take(record)
        self._outcome = _summary(self._folder.summary)

    def _begin(self, planned: tuple[int, int] | None) -> None:
        self._view, self._planned = None, planned
        self.problem = _NOT_BEGUN if planned is None else None
        if planned is None:
            return
        if planned[1] > _MOST_PLAN_BYTES:
            self.problem = "its plan.yaml is too large to be shown"
            return
        try:
            self._view = RunView(load_plan(self._folder.plan, has_run=True), self._words)
            self._records = RunRecords(self._folder.metrics)
        except InvalidInput as error:
            self.problem = str(error)

    def document(self) -> dict[str, object]:
        """What the page shows, but for the curves: as ravnest/page/run_view.py says, and `read`, the part of the run's
        past that was read. Where nothing can be shown, `problem` says why."""
        state, silent_s = self._state()
        name = self.path.resolve().name
        if self._view is None:
            return {"version": 1, "run": {"name": name, "state": state}, "problem": self.problem}
        now_s = self._view.at_s + (silent_s if state in ("running", "unknown") else 0.0)
        read = round(self._records.part_read, 3)
        lock, metrics = _stamp(self.path / LOCK), _stamp(self._folder.metrics)
        new = lock is not None and (metrics is None or metrics[0] < lock[0])  # its process has written nothing yet
        found = self._view.document(state=state, now_s=now_s, name=name, outcome=self._outcome, new=new)
        return {**found, "read": read, "silent_s": round(silent_s) if state == "running" else None}

    def curves(self) -> dict[str, object]:
        """The curves; empty where nothing can be shown."""
        return {} if self._view is None else self._view.curves()

    def links(self) -> list[object]:
        """All links; empty where nothing can be shown."""
        return [] if self._view is None else self._view.links()

    def _state(self) -> tuple[State, float]:
        """What the run does, and for how many seconds it has written nothing."""
        lock, _ = look_at_lock(self.path)
        stopped = self._outcome.get("stopped_early")
        phase = None if self._view is None else self._view.phase
        early = stopped if isinstance(stopped, bool) else None
        end = None if self._view is None else self._view.end
        state = state_of(lock, phase, stopped_early=early, at_once=end is not None and end.at_once)
        stamp = _stamp(self._folder.metrics)
        return state, 0.0 if stamp is None else max(0.0, time.time() - stamp[0] / 1e9)


def _stamp(path: Path) -> tuple[int, int] | None:
    """When a file was last written, in nanoseconds, and its size; None where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def _summary(path: Path) -> Mapping[str, object]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
