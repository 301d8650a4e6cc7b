"""Where a stage's computations run: one at a time, in a thread of their own, or inline for tests.

In: calls. Out: their results. A listener is given each result in the computing thread, and may submit the next call
without another thread having to run. Results that it does not take are handed back to the thread that owns the sockets,
which is woken for them. An exception is a result too, so that it is raised there.
"""

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from ravnest.pipeline import Compute


@dataclass(frozen=True)
class ComputeFinished:
    """The end of a computation. `result` has no meaning where there is an `error`."""

    instruction: Compute
    result: Any = None
    error: BaseException | None = None
    took: tuple[float, float] | None = None
    """When it began and ended, by the stage's clock; None where this was not measured."""


Listener = Callable[[ComputeFinished], bool]
"""Takes a result in the computing thread. It returns False where the thread that owns the sockets is to take it."""


class Executor(Protocol):
    """Runs computations in the order in which they are submitted."""

    def listen(self, listener: Listener) -> None:
        """Give each result to `listener` first, from now on. An exception that it raises is handed back as a result."""
        ...

    def submit(self, instruction: Compute, work: Callable[[], Any]) -> None:
        """Run `work` after everything that was submitted before. `instruction` is what its result is known by."""
        ...

    def finished(self) -> list[ComputeFinished]:
        """The results that no listener took, and that were not returned before."""
        ...

    def close(self, timeout_s: float) -> None:
        """Run nothing more. Waits for at most `timeout_s`, in seconds."""
        ...


def _run(instruction: Compute, work: Callable[[], Any], now: Callable[[], float] | None = None) -> ComputeFinished:
    began_s = now() if now is not None else 0.0
    try:
        result = work()
        return ComputeFinished(instruction, result, took=None if now is None else (began_s, now()))
    except BaseException as error:  # noqa: BLE001 - carried to the owning thread, which raises it
        return ComputeFinished(instruction, error=error)


class InlineExecutor:
    """Computes at once in the caller's thread, which is deterministic, for tests."""

    def __init__(self) -> None:
        self._done: list[ComputeFinished] = []

    def listen(self, listener: Listener) -> None:
        """This does nothing: there is one thread only, which takes its results by `finished`."""

    def submit(self, instruction: Compute, work: Callable[[], Any]) -> None:
        self._done.append(_run(instruction, work))

    def finished(self) -> list[ComputeFinished]:
        done, self._done = self._done, []
        return done

    def close(self, timeout_s: float) -> None:
        self._done.clear()


class ThreadExecutor:
    """Computes in one thread.

    prepare: is run there first, since torch's thread count is a property of the thread.
    wake: wakes the thread that owns the sockets.
    now: the stage's clock, by which the time of each computation is measured.
    """

    def __init__(
        self, wake: Callable[[], None], prepare: Callable[[], None], now: Callable[[], float] = time.monotonic
    ) -> None:
        self._wake = wake
        self._prepare = prepare
        self._now = now
        self._work: queue.SimpleQueue[tuple[Compute, Callable[[], Any]] | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[ComputeFinished] = queue.SimpleQueue()
        self._listener: Listener = lambda finished: False
        self._thread = threading.Thread(target=self._loop, name="compute", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether the thread still runs."""
        return self._thread.is_alive()

    def listen(self, listener: Listener) -> None:
        self._listener = listener

    def submit(self, instruction: Compute, work: Callable[[], Any]) -> None:
        self._work.put((instruction, work))

    def finished(self) -> list[ComputeFinished]:
        done = []
        while not self._done.empty():
            done.append(self._done.get())
        return done

    def close(self, timeout_s: float) -> None:
        """Wait for the current computation for at most `timeout_s`. The thread is a daemon, so it never keeps the
        process alive."""
        self._work.put(None)
        self._thread.join(timeout_s)

    def _loop(self) -> None:
        self._prepare()
        while (item := self._work.get()) is not None:
            finished = _run(*item, self._now)
            try:
                heard = self._listener(finished)
            except BaseException as error:  # noqa: BLE001 - as in _run
                finished, heard = ComputeFinished(finished.instruction, error=error), False
            if not heard:
                self._done.put(finished)
                self._wake()
