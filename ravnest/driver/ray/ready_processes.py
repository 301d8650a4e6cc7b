"""Ready processes: beside a stage, on its node, one that has loaded what such a stage needs, and waits for its place.

To start a process takes longer than anything else after a stage's process has ended: an actor, Python, torch, the
libraries of the job. A ready process has all of that behind it. It holds no state, no data and no port, some 170 MB of
libraries, and ends with the stage's actor (stage_host.py).

In: which stages enter their loops, and whose processes have ended. Out: the stages whose places can be taken so.
"""

from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import Any

from ravnest.recovery import READY_AFTER_S
from ravnest.stage.line import IS_READY


class ReadyProcesses:
    """Which stages of one run have a ready process beside them. It belongs to the driver's thread."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self._wanted: set[str] = set()
        self._loading: dict[Any, str] = {}
        """By call that is to make a ready process: the stage."""
        self._loaded: set[str] = set()
        self._ended: set[str] = set()

    @property
    def waiting(self) -> set[str]:
        """The stages whose processes have ended, and whose places a ready process can take."""
        return self._loaded & self._ended

    def want(self, stages: Iterable[str], beside: Collection[str]) -> None:
        """Processes are made for these stages; those of them in `beside` are to have a ready one."""
        for stage in stages:
            self.forget(stage)
            if stage in beside:
                self._wanted.add(stage)

    def entered(self, stage: str, actor: Any) -> None:
        """A stage enters its loop: make a process ready beside it, if it is to have one."""
        if stage in self._wanted:
            self._loading[actor.make_ready.remote(READY_AFTER_S)] = stage

    def ended(self, stage: str) -> None:
        """The stage's process has ended, as its actor says, which is there."""
        self._ended.add(stage)

    def take(self, stage: str) -> None:
        """The ready process takes the place of the stage. It is to have another one beside it."""
        self._loaded.discard(stage)
        self._ended.discard(stage)

    def forget(self, stage: str) -> None:
        """The stage's actor goes, with all its processes."""
        self.take(stage)
        self._wanted.discard(stage)
        self._loading = {call: each for call, each in self._loading.items() if each != stage}

    def look(self) -> None:
        """Note which have loaded what they need by now. One that cannot is none: its stage will say why."""
        if not self._loading:
            return
        done, _ = self._ray.wait(list(self._loading), num_returns=len(self._loading), timeout=0.0)
        for call in done:
            stage = self._loading.pop(call)
            with suppress(self._ray.exceptions.RayError):
                if self._ray.get(call) == ("said", IS_READY):
                    self._loaded.add(stage)
