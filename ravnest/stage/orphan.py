"""When a stage counts as orphaned, and how its process then ends by itself.

A cut link leaves a stage without a driver, on a machine whose Ray hears nothing of the run's end either: nobody ends
the process from outside. So it has deadlines of its own, and this module is the only place that says how long they are.

- While it starts, START_DEADLINE_S for each step, as the driver waits for it (messages.py).
- While it gets its state, STATE_DEADLINE_S without a piece of it (messages.py).
- While it trains, `orphan_deadline` without a sign of life of the driver: then it finishes what is in flight and
  waits, with all that it holds, for another driver to take the run over (`DriverWatch`). The job says for how long.
- Afterwards, whatever the end was, LEAVE_S: the driver has asked for the outcome by then, or will never do.
"""

import os
import threading
import time
from collections.abc import Callable

from ravnest.errors import NodeLost
from ravnest.stage.messages import ALIVE_EVERY_S, STOOD_STILL_S
from ring_allreduce.rounds import SILENCE_FLOOR_S, AwakeTime, SilenceDeadline

ORPHAN_FLOOR_S = SILENCE_FLOOR_S
"""A stage that trains goes on for at least so long without hearing the driver."""

LEAVE_S = 10.0
"""How long the process of a stage stays when the stage has come to its end."""


def orphan_deadline(now_s: float) -> SilenceDeadline:
    """The deadline for the silence of the driver while a stage trains, from `now_s` on. It is derived from the gaps
    between the driver's signs of life, and at least ORPHAN_FLOOR_S."""
    return SilenceDeadline(now_s, floor_s=ORPHAN_FLOOR_S)


class DriverWatch:
    """Whether a stage that trains hears its driver, waits for one to take the run over, or has waited for too long."""

    def __init__(self, now_s: float, keep_s: float) -> None:
        """`keep_s`: how long the stage keeps its state once it hears no driver; 0: it leaves at once."""
        self._deadline = orphan_deadline(now_s)
        self._keep_s = keep_s
        self.waits = False
        """Whether no driver is heard, so that nothing new is begun."""

    def heard(self, now_s: float) -> bool:
        """A driver was heard. Returns whether that ends a wait for it."""
        if self.waits:
            self._deadline.rest(now_s)  # a wait is no usual gap
        else:
            self._deadline.heard(now_s)
        ended, self.waits = self.waits, False
        return ended

    def look(self, now_s: float) -> bool:
        """Returns whether a wait begins now. Raises NodeLost once it has been too long."""
        if not self._deadline.expired(now_s):
            return False
        silent_s = self._deadline.silent_s(now_s)
        if silent_s > self._deadline.limit_s() + self._keep_s:
            raise NodeLost(f"the driver has been silent for {silent_s:.0f} s")
        begins, self.waits = not self.waits, True
        return begins


class Leash:
    """Ends this process when its time is over, whatever its threads do then. Time in which the process stood still does
    not count: a pause of a run that starts is nobody's end."""

    def __init__(
        self,
        end: Callable[[], None] = lambda: os._exit(1),
        *,
        now: Callable[[], float] = time.monotonic,
        wait: Callable[[threading.Event, float], bool] = threading.Event.wait,
    ) -> None:
        """`end` is what happens when the time is over; `now` is the clock, in seconds; `wait` waits so many seconds for
        an event."""
        self._end = end
        self._now = now
        self._wait = wait
        self._released: threading.Event | None = None

    def allow(self, seconds: float) -> None:
        """Let the process live for so many seconds from now, however many it had before."""
        self.release()
        self._released = threading.Event()
        threading.Thread(target=self._watch, args=(self._released, seconds), name="leash", daemon=True).start()

    def release(self) -> None:
        """Set no limit any more."""
        if self._released is not None:
            self._released.set()
            self._released = None

    def _watch(self, released: threading.Event, seconds: float) -> None:
        awake = AwakeTime(STOOD_STILL_S, ALIVE_EVERY_S)
        until_s = awake.at(self._now()) + seconds
        while (left_s := until_s - awake.at(self._now())) > 0:
            if self._wait(released, min(ALIVE_EVERY_S, left_s)):
                return
        if not released.is_set():
            self._end()
