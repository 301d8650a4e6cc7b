"""Gives what happens in a run to the user's own trackers, beside metrics.jsonl.

In: the records of metrics.jsonl, and the factories that the job names under `report_to`. Out: a call of each tracker
for each record, in a thread of its own. A tracker that is slow holds nobody up: what it cannot take in time is dropped
and counted. One that raises is told of once and called no more. Neither ends a run.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ravnest.errors import InvalidInput
from ravnest.factories import FactoryConfig, call, describe

Tracker = Callable[[Mapping[str, Any]], object]

MOST_WAITING = 10_000
"""Records that wait for a slow tracker. Further ones are dropped."""
CLOSE_S = 30.0
"""How long the end of a run waits for trackers to take what is left."""


class Trackers:
    """The trackers of one session. Its owner starts them, gives records and closes them, all in one thread."""

    def __init__(self, wanted: Sequence[FactoryConfig], search_dirs: Sequence[Path], job_file: str) -> None:
        """Make the trackers. Raises InvalidInput for a factory that fails or returns nothing that can be called."""
        self._trackers: dict[str, Tracker] = {}
        for number, factory in enumerate(wanted):
            made = call(factory, search_dirs, path=job_file, key=f"report_to[{number}].factory")
            if not callable(made):
                raise InvalidInput(
                    f"{factory.factory!r} returned {type(made).__name__}, expected a callable that takes a record",
                    path=job_file,
                    key=f"report_to[{number}].factory",
                )
            self._trackers[f"{factory.factory} (report_to[{number}])"] = made
        self._records: queue.Queue[Mapping[str, Any] | None] = queue.Queue(MOST_WAITING)
        self._failures: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._dropped = 0
        self._thread = threading.Thread(target=self._work, name="trackers", daemon=True)

    def start(self) -> None:
        """From now on, records are taken."""
        if self._trackers:
            self._thread.start()

    def close(self) -> None:
        """Wait until they have taken what is left, for a while."""
        if self._thread.is_alive():
            try:
                self._records.put(None, timeout=CLOSE_S)
            except queue.Full:
                return  # it is stuck, and a daemon: it ends with the process
            self._thread.join(CLOSE_S)

    def give(self, record: Mapping[str, Any]) -> None:
        """Let the trackers have a record, without waiting for them."""
        if not self._trackers:
            return
        try:
            self._records.put_nowait(record)
        except queue.Full:
            self._dropped += 1

    def take_troubles(self) -> list[str]:
        """What has gone wrong since the last call, as sentences for the user."""
        found = []
        while not self._failures.empty():
            found.append(self._failures.get())
        dropped, self._dropped = self._dropped, 0
        if dropped:
            found.append(f"report_to: {dropped} records were dropped, since the trackers are slower than the run")
        return found

    def _work(self) -> None:
        left = dict(self._trackers)
        while (record := self._records.get()) is not None:
            for name, tracker in list(left.items()):
                self._try(left, name, partial(tracker, record))
        for name, tracker in list(left.items()):
            close = getattr(tracker, "close", None)
            if callable(close):
                self._try(left, name, close)

    def _try(self, left: dict[str, Tracker], name: str, step: Callable[[], object]) -> None:
        try:
            step()
        except Exception as error:  # noqa: BLE001 - whatever the user's code raises, the run goes on
            del left[name]
            self._failures.put(f"{name} raised {describe(error)}, and is told nothing any more")
