"""Computing in a thread of its own, while the thread that asks for it sends and takes vectors.

In: one piece of work, and what is to be done again and again meanwhile. Out: the work's result, or its error. Where
steps are delayed an average travels while the next batch is computed, and pieces of it would otherwise wait for the end
of a micro-batch: at most WINDOW of them would travel in each.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from types import TracebackType
from typing import Protocol

from ravnest.collaboration.trainer import MicroBatch

TEND_EVERY_S = 0.01
"""While work is done vectors are looked after so often: 200 MB/s at a window of 2 MiB."""


class Beside(Protocol):
    """Does work, and tends something meanwhile."""

    def run(self, work: Callable[[], MicroBatch], tend: Callable[[float], None]) -> MicroBatch:
        """Return what `work` returns, and raise what it raises. `tend(seconds)` waits for events, at most so long."""
        ...

    def close(self) -> None:
        """End the thread; work under way is waited for."""
        ...


class BesideInThread:
    """One thread, which is made with the first work. `with` it."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="computing")

    def run(self, work: Callable[[], MicroBatch], tend: Callable[[float], None]) -> MicroBatch:
        """See Beside. `work` alone touches the model until it returns."""
        future: Future[MicroBatch] = self._pool.submit(work)
        while not wait([future], TEND_EVERY_S).done:
            tend(0.0)
        return future.result()

    def close(self) -> None:
        """See Beside."""
        self._pool.shutdown()

    def __enter__(self) -> "BesideInThread":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
