"""Threads in an order that a seed chooses: between any two lines of chosen modules another thread may go on.

In: a seed, the modules, and what each thread does. Out: nothing, or the first error of a thread. One thread runs at a
time. Before each line of the chosen modules (`sys.settrace`) it draws who goes on, so the same seed and code give the
same order, and a seed that fails fails again. Some seeds change threads at nearly each line, others seldom: so one
thread may do much between two lines of another. Locks that are made inside `locks()` give way instead of blocking.

A race inside one line is not found: `a += 1` counts as one step here.
"""

import random
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import FrameType, ModuleType, TracebackType
from typing import Any
from unittest import mock

MOST_STEPS = 100_000
"""A schedule that takes more steps stands still."""

STAYS = (0.0, 0.5, 0.9, 0.97)
"""One of these is how likely a thread goes on, without another draw."""

WAIT_S = 60.0


class Interleaving:
    """One schedule."""

    def __init__(self, seed: int, modules: Sequence[ModuleType]) -> None:
        self._draw = random.Random(seed)
        self._stays = self._draw.choice(STAYS)
        self._files = {module.__file__ for module in modules}
        self._turns: list[threading.Semaphore] = []
        self._alive: list[int] = []
        self._errors: list[BaseException] = []
        self._now = -1
        self.steps = 0
        """How often it was drawn who goes on."""

    @contextmanager
    def locks(self) -> Iterator[None]:
        """Locks that are made in this context belong to the schedule."""
        make = partial(_Lock, self)
        with mock.patch("threading.Lock", make), mock.patch("threading.RLock", make):
            yield

    def run(self, *bodies: Callable[[], None]) -> None:
        """Run the bodies, each in a thread of its own, to their ends. Raises the first error of one of them."""
        self._turns = [threading.Semaphore(0) for _ in bodies]
        self._alive = list(range(len(bodies)))
        threads = [threading.Thread(target=self._body, args=each, daemon=True) for each in enumerate(bodies)]
        for thread in threads:
            thread.start()
        self._go_on(self._draw.choice(self._alive))
        for thread in threads:
            thread.join(WAIT_S)
            if thread.is_alive():
                raise AssertionError("a thread waits for something that the schedule does not know")
        if self._errors:
            raise self._errors[0]

    def thread_class(self, bodies: list[Callable[[], None]]) -> type:
        """A class in the place of threading.Thread: what such a thread is to do is added to `bodies`, and is one more
        body of the schedule. Who joins it gives way until it has ended."""
        schedule = self

        class Thread:
            def __init__(self, *, target: Callable[[], None], name: str, daemon: bool) -> None:
                self._target, self._done = target, False
                bodies.append(self._body)

            def start(self) -> None:
                pass

            def join(self, timeout_s: float) -> None:
                while not self._done:
                    schedule.give_way()

            def _body(self) -> None:
                try:
                    self._target()
                finally:
                    self._done = True

        return Thread

    def give_way(self) -> None:
        """Let a thread go on that is drawn, which may be this one; nothing happens outside of a schedule."""
        mine = self._now
        if mine < 0:
            return
        if self._errors:
            raise RuntimeError("another thread has failed")
        self.steps += 1
        if self.steps > MOST_STEPS:
            raise AssertionError(f"nothing is done after {MOST_STEPS} steps: the threads wait for each other")
        stays = self._draw.random() < self._stays
        chosen = mine if stays else self._draw.choice(self._alive)
        if chosen != mine:
            self._go_on(chosen)
            self._turns[mine].acquire()
            self._now = mine

    def _go_on(self, number: int) -> None:
        self._now = number
        self._turns[number].release()

    def _body(self, number: int, body: Callable[[], None]) -> None:
        self._turns[number].acquire()
        self._now = number
        sys.settrace(self._trace)
        try:
            body()
        except BaseException as error:  # noqa: BLE001 - whoever runs the schedule raises it
            self._errors.append(error)
        finally:
            sys.settrace(None)
            self._alive.remove(number)
            if self._alive:
                self._go_on(self._draw.choice(self._alive))
            else:
                self._now = -1

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename not in self._files:
            return None
        if event == "line":
            self.give_way()
        return self._trace


class _Lock:
    """A lock, also one that its thread may take again, that gives way while another thread has it."""

    def __init__(self, schedule: Interleaving) -> None:
        self._schedule = schedule
        self._owner: int | None = None
        self._depth = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        me = threading.get_ident()
        while self._owner not in (None, me):
            if not blocking:
                return False
            self._schedule.give_way()
        self._owner, self._depth = me, self._depth + 1
        return True

    def release(self) -> None:
        self._depth -= 1
        if not self._depth:
            self._owner = None

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
