"""The held-out set is evaluated beside serving: on a copy of the model, one evaluation at a time.

In: work that needs nothing but its copy, and asks between two batches whether it is still wanted. Out: what was found,
to the thread that asked for it. That thread alone has the state; what is copied for the other one is nobody else's.
Work whose data or model hang is given up: nobody waits for it, and no other is begun, which would hang as well.
"""

import threading
import time
from collections.abc import Callable, Mapping

Found = Mapping[str, float]
"""Loss and metrics by name; empty where there is nothing to evaluate."""

Work = Callable[[Callable[[], bool]], Found]
"""Is told how to ask whether to stop, and returns anything then."""

STOP_S = 10.0
"""An evaluation that nobody wants any more is waited for so long: it ends with its batch."""

LOOK_S = 0.2

BATCH_S, BATCHES = 600.0, 10.0
"""A batch may take so long, or so many times the longest one before it."""


def in_thread(work: Callable[[], None]) -> None:
    """Begin work in a thread of its own, which keeps no process from its end."""
    threading.Thread(target=work, name="evaluating", daemon=True).start()


def at_once(work: Callable[[], None]) -> None:
    """Do work before anything else."""
    work()


class Evaluations:
    """All evaluations of one machine. It belongs to the thread that serves."""

    def __init__(
        self,
        begin: Callable[[Callable[[], None]], object] = in_thread,
        sleep: Callable[[float], None] = time.sleep,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`begin`: has work done, beside this or at once."""
        self._begin, self._sleep, self._now = begin, sleep, now
        self._step: int | None = None  # of the one under way
        self._asked_s = self._longest_s = 0.0  # when work asked last, and the longest time between two times
        self.hangs = False
        """Work was given up, and no other may begin."""
        self._done, self._stopped = threading.Event(), threading.Event()
        self._found: Found = {}
        self._error: Exception | None = None

    @property
    def under_way(self) -> int | None:
        """The step that is evaluated now."""
        return self._step

    def begin(self, step: int, work: Work) -> None:
        """Begin one; none may be under way."""
        done, stopped = self._done, self._stopped = threading.Event(), threading.Event()
        self._step, self._found, self._error = step, {}, None
        self._asked_s = self._now()

        def asks() -> bool:
            if done is self._done:
                before_s, self._asked_s = self._asked_s, self._now()
                self._longest_s = max(self._longest_s, self._asked_s - before_s)
            return stopped.is_set()

        def evaluate() -> None:
            try:
                found = work(asks)
                if done is self._done:
                    self._found = found
            except Exception as error:  # noqa: BLE001 - is raised where it is heard
                if done is self._done:
                    self._error = error
            finally:
                done.set()

        self._begin(evaluate)

    def give_up(self) -> int | None:
        """The step of one that hangs now: it is not under way any more."""
        step = self._step
        if not self._hangs():
            return None
        self._stopped.set()
        self._step, self.hangs = None, True
        return step

    def finished(self) -> tuple[int, Found] | None:
        """(step, what was found) of one that has ended since this was last asked for. Raises what the work raised."""
        step = self._step
        if step is None or not self._done.is_set():
            return None
        self._step, error = None, self._error
        if error is not None:
            raise error
        return step, self._found

    def wait(self, stop: Callable[[], bool]) -> None:
        """Until the one under way has ended or hangs, or `stop` says so."""
        while self._step is not None and not self._done.is_set() and not self._hangs() and not stop():
            self._sleep(LOOK_S)

    def stop(self) -> None:
        """Nobody wants the one under way any more: finished() will not name it."""
        self._stopped.set()
        looks = iter(range(round(STOP_S / LOOK_S)))
        self.wait(lambda: next(looks, None) is None)
        self._step = None

    def _hangs(self) -> bool:
        most_s = max(BATCH_S, BATCHES * self._longest_s)
        return self._step is not None and not self._done.is_set() and self._now() > self._asked_s + most_s
