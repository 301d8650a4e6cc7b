"""Processes of stages on the driver's own machine: which have ended, and how to end one.

In: where each stage listens, with its process's id and beginning. Out: their ends, as the operating system tells them,
without Ray. Processes on other machines are left out: of those that this driver has started Ray's actors tell, and of
those that another driver has started their messages alone.
"""

import os
import signal
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress

import psutil

from ravnest.stage.own_process import process_space
from ravnest.stage.setup import StageAddress

_SAME_S = 1.0
"""Two processes of one id began further apart than this."""


class ProcessesHere:
    """The processes of some stages of one run, as far as they are on this machine."""

    def __init__(self, stages: Mapping[str, StageAddress]) -> None:
        """`stages`: by name, those of this and of other machines."""
        self._processes: dict[str, psutil.Process | None] = {}
        self.everywhere = set[str]()
        """All stages that were not ended by `end`, those of other machines among them."""
        self._gone_s: dict[str, float] = {}
        """By stage whose process has ended: when `gone_for` saw that first."""
        self.add(stages)

    def add(self, stages: Mapping[str, StageAddress]) -> None:
        """Watch these too. A stage that is known already has another process now."""
        here = process_space()
        self.everywhere |= stages.keys()
        self._processes |= {stage: _process(at) for stage, at in stages.items() if at.machine == here}

    @property
    def stages(self) -> list[str]:
        """The stages of this machine whose ends were not told yet."""
        return list(self._processes)

    @property
    def ids(self) -> list[int]:
        """The ids of those that live on this machine."""
        return [each.pid for each in self._processes.values() if each is not None and _lives(each)]

    def is_gone(self, stage: str) -> bool:
        """Whether the stage's process was on this machine and has ended."""
        if stage not in self._processes:
            return False
        process = self._processes[stage]
        return process is None or not _lives(process)

    def gone(self) -> list[str]:
        """The stages whose processes were on this machine and have ended."""
        return [stage for stage in self._processes if self.is_gone(stage)]

    def gone_for(self, stages: Collection[str], seconds: float, now_s: float) -> list[str]:
        """Those of `stages` whose processes here were seen to have ended so many seconds ago, at least."""
        gone = [stage for stage in self.gone() if stage in stages]
        self._gone_s = {stage: self._gone_s.get(stage, now_s) for stage in gone}
        return [stage for stage, since_s in self._gone_s.items() if now_s - since_s >= seconds]

    def take_ended(self) -> list[str]:
        """The same, each once."""
        gone = self.gone()
        self.forget(gone)
        return gone

    def forget(self, stages: Iterable[str]) -> None:
        """Watch these no more, and let them live."""
        for stage in stages:
            self._processes.pop(stage, None)

    def send(self, stages: Iterable[str], what: signal.Signals) -> None:
        """Send a signal to these processes, with all that they have started."""
        for stage in stages:
            process = self._processes.get(stage)
            if process is not None and _lives(process):
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(os.getpgid(process.pid), what)

    def end(self, stages: Iterable[str]) -> None:
        """End these processes at once, with all that they have started. They are not told of any more."""
        for stage in stages:
            self.everywhere.discard(stage)
            process = self._processes.pop(stage, None)
            if process is not None and _lives(process):
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(os.getpgid(process.pid), signal.SIGKILL)


def _process(at: StageAddress) -> psutil.Process | None:
    try:
        process = psutil.Process(at.pid)
        return process if abs(process.create_time() - at.began_s) < _SAME_S else None
    except psutil.Error:
        return None


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running()) and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
