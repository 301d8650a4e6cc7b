"""`ravnest` with threads in the place of Ray: stages are started in the namespaces of a site.

    FAULTS_SITE=NUMBER python -m experiments.churn.faulted.in_namespaces ARGUMENTS OF ravnest

Ray takes ten seconds and half a gigabyte for each run, and its part in a run is small: it starts each stage's process
on its machine, and tells how that ended. Everything else is what `ravnest run` does: the driver, the stages as
processes of their own, sockets, keys, files. In: the command line. Out: what ravnest does with it.

This session takes the place of ravnest's before any other module has taken that one from its module: whatever would ask
Ray asks this one, and nothing waits for a head that is not there.
"""

import ctypes
import os
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from experiments.churn.faulted.machines import Site
from ravnest.driver.ray import session
from ravnest.driver.ray.session import RayNode
from ravnest.driver.ray.stage_host import StageActor

SITE = Site(int(os.environ.get("FAULTS_SITE", "0")))
_CLONE_NEWNET = 0x40000000


class RayError(Exception):
    """Stands in for Ray's errors, of which there are none here."""


class Call:
    """A method of an actor, each call of which runs in a thread of its own, on the actor's machine."""

    def __init__(self, method: Callable[..., Any], node: str) -> None:
        self._method = method
        self._node = node

    def remote(self, *arguments: Any) -> "Future[Any]":
        """Begin a call."""
        future: Future[Any] = Future()
        threading.Thread(target=self._run, args=(future, arguments), daemon=True).start()
        return future

    def _run(self, future: "Future[Any]", arguments: tuple[Any, ...]) -> None:
        try:
            _enter(self._node)
            future.set_result(self._method(*arguments))
        except BaseException as error:  # noqa: BLE001 - whoever asks for the result is told
            future.set_exception(error)


def _enter(node: str) -> None:
    """Let this thread, and the processes that it starts, be on that machine."""
    space = os.open(SITE.netns(node), os.O_RDONLY)
    try:
        if ctypes.CDLL(None, use_errno=True).setns(space, _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter {SITE.space(node)}")
    finally:
        os.close(space)


class Threads:
    """What ravnest asks of the module `ray`."""

    exceptions = SimpleNamespace(RayError=RayError, OutOfMemoryError=MemoryError)

    @staticmethod
    def remote(actor: type[StageActor]) -> Any:
        """Return what makes such actors on a node."""

        def options(*, node: str, **_: object) -> Any:
            def made(name: str, order: bytes) -> Any:
                one = actor(name, order)
                methods = (each for each in vars(actor) if not each.startswith("_"))
                return SimpleNamespace(**{each: Call(getattr(one, each), node) for each in methods})

            return SimpleNamespace(remote=made)

        return SimpleNamespace(options=options)

    @staticmethod
    def wait(calls: list[Any], *, num_returns: int, timeout: float) -> tuple[list[Any], list[Any]]:
        """Wait until all are done, or for so long."""
        done = wait(calls, timeout).done
        return [call for call in calls if call in done], [call for call in calls if call not in done]

    @staticmethod
    def get(call: "Future[Any]") -> Any:
        """The result of a call that is done."""
        return call.result(0)

    @staticmethod
    def kill(actor: object) -> None:
        """The actor is not needed any more."""


class Session:
    """A session of Ray whose nodes are the namespaces of the site."""

    ray, is_local, ships_code, host = Threads, False, False, SITE.driver

    def __init__(self, address: str | None, code: object = None, log: Path | None = None) -> None:
        pass

    def nodes(self) -> list[RayNode]:
        """All machines; none of them is ever gone."""
        return [RayNode(name, at, name, 1, name, alive=True, works=True) for name, at in SITE.addresses.items()]

    def draining(self) -> list[RayNode]:
        """None of them is told to go."""
        return []

    def on_node(self, node: RayNode) -> Mapping[str, str]:
        """Options by which an actor is made there."""
        return {"node": node.node_id}

    def close(self) -> None:
        """Leave nothing behind: stages that go on are their own."""


class NobodyJoins:
    """Stands in for the process that measures machines which appear in Ray."""

    def __init__(self, address: object, log: object) -> None:
        pass

    def __enter__(self) -> "NobodyJoins":
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def start(self, run: Path) -> None:
        """Nobody appears."""


def _instead_of_ray() -> None:
    """Let all that is imported from now on have this session, and find the head wherever it looks for it."""
    session.RaySession = Session  # type: ignore[assignment, misc]
    session.silence_at = lambda address: None


if __name__ == "__main__":
    _instead_of_ray()
    from ravnest.driver import node_watch

    node_watch.NodeWatch = NobodyJoins  # type: ignore[assignment, misc]
    from ravnest.cli.main import main

    sys.argv[0] = "ravnest"
    main()
