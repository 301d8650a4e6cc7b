"""Ready processes: on the nodes of a run, those that have loaded what its stages need, and wait for a place.

To start a process takes longer than anything else after a stage was lost: an actor, Python, torch, the libraries of the
job. A ready process has all of that behind it. It holds no state, no data and no port, some 170 MB of libraries, and
ends with its actor (stage_host.py). One waits beside a stage, in the stage's actor; where that stage is over, its actor
rests, and what waits in it may become any stage on that node. On a node where nothing runs an actor rests from the
beginning.

In: the stages' setups, which of them enter their loops, and whose processes and actors end. Out: the stages whose
places can be taken so, and the nodes on which something waits.
"""

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from ravnest.recovery import READY_AFTER_S
from ravnest.stage.line import IS_READY
from ravnest.stage.setup import StageSetup


class ReadyProcesses:
    """The ready processes of one run. It belongs to the driver's thread."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self.setup: StageSetup | None = None
        """What a process loads to be ready for any stage: a stage's setup, without state and keys. None: none yet."""
        self._wanted: set[str] = set()
        self._loading: dict[Any, str] = {}
        """By call that is to make a ready process: the stage."""
        self._loaded: set[str] = set()
        self._ended: set[str] = set()
        self._resting: dict[str, Any] = {}
        """By node: the actor in which a ready process waits, and no stage runs."""
        self._coming: dict[Any, tuple[str, Any]] = {}
        """By call that is to make a ready process where nothing runs: the node, and the actor."""
        self._tried: set[str] = set()
        """The nodes where nothing runs, and on which one was to be made: if it could not load, it would not again."""

    @property
    def waiting(self) -> set[str]:
        """The stages whose processes have ended, and whose places a ready process can take."""
        return self._loaded & self._ended

    def nodes(self, nodes: Mapping[str, str]) -> set[str]:
        """The nodes on which a ready process waits, beside a stage or alone. `nodes`: the node of each stage."""
        return {*self._resting, *(nodes[stage] for stage in self._loaded)}

    def know(self, setups: Mapping[str, StageSetup]) -> None:
        """The run has stages with these setups."""
        if self.setup is None and setups:
            setup = next(iter(setups.values()))
            self.setup = replace(setup, initial=(), transport=replace(setup.transport, keys=None))

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

    def forget(self, stage: str) -> None:
        """The stage's actor goes, with all its processes, or is none of this stage's any more."""
        for stages in (self._loaded, self._ended, self._wanted):
            stages.discard(stage)
        self._loading = {call: each for call, each in self._loading.items() if each != stage}

    def rest(self, stage: str, node: str, actor: Any) -> bool:
        """The stage is over: let its actor rest on its node, if a ready process waits in it, and in no other one there.

        Returns whether it rests.
        """
        rests = stage in self._loaded and node not in self._resting
        self.forget(stage)
        if rests:
            self._resting[node] = actor
        return rests

    def take(self, node: str) -> Any | None:
        """The actor that rests on a node, which is to be a stage's from now on; None: there is none.

        Where the node is free again, another one may be made there.
        """
        self._tried.discard(node)
        return self._resting.pop(node, None)

    def untried(self, free: Collection[str]) -> set[str]:
        """Those of the nodes where nothing runs on which no ready process waits, or was to be made since that is so."""
        self._tried &= set(free)
        return set(free) - self._tried - self._resting.keys()

    def coming(self, node: str, actor: Any) -> None:
        """A process is made ready on a node where nothing runs."""
        self._tried.add(node)
        self._coming[actor.make_ready.remote(0.0)] = node, actor

    def leave(self, nodes: Collection[str] | None = None) -> list[Any]:
        """Return the actors without a stage on these nodes, or on all, which are to be ended: something else begins
        there, or they are gone. None of them has failed, so that others may be made there later."""
        gone = [self._resting.pop(node) for node in list(self._resting) if nodes is None or node in nodes]
        for call, (node, actor) in list(self._coming.items()):
            if nodes is None or node in nodes:
                del self._coming[call]
                gone.append(actor)
        self._tried -= self._tried if nodes is None else set(nodes)
        return gone

    def look(self) -> list[Any]:
        """Note which have loaded what they need by now. One that cannot is none: its stage will say why.

        Returns the actors without a stage in which nothing waits after all, which are to be ended.
        """
        calls, over = [*self._loading, *self._coming], []
        if not calls:
            return []
        done, _ = self._ray.wait(calls, num_returns=len(calls), timeout=0.0)
        for call in done:
            stage, (node, actor) = self._loading.pop(call, None), self._coming.pop(call, ("", None))
            said = None
            with suppress(self._ray.exceptions.RayError):
                said = self._ray.get(call)
            if said == ("said", IS_READY) and stage is not None:
                self._loaded.add(stage)
            elif said == ("said", IS_READY) and node not in self._resting:
                self._resting[node] = actor
            elif actor is not None:
                over.append(actor)
        return over
