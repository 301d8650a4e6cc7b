"""Whether a volunteer keeps up with the averages that are made, and what is said to one that does not (decision 260).

In: what waits for each, what it has taken, and how many steps were made. Out: why it has to be put out, with figures,
and whether it may come back. Who joins finds the averages behind its state that were made meanwhile, so more of them
may wait for it; once it has the state they have to become fewer, however slowly. Who was put out several times, and
gave nothing between, has a link or a machine that is too slow for the steps: it would take the state for ever.
"""

from collections.abc import Callable
from dataclasses import dataclass

from ravnest.collaboration.packing import Packing
from ravnest.collaboration.taking import HELD_BYTES, MESSAGE_BYTES
from ravnest.collaboration.visitor import Visitor

MOST_WAITING = 4
"""Who has caught up, and for which more averages wait than that, takes nothing, or too little."""

WAITING_GRADIENTS = 12
"""For who has not caught up averages may wait that have as many bytes as so many gradients in float32, or HELD_BYTES.
While a link carries a state of Adam, which has three, fewer averages are made than that, or it is too slow for them;
states wait for averages, and may share a link. All visitors' queues share the memory of an average."""

JUDGED = 32
"""In so many steps the averages that wait for who catches up become fewer, else they never will."""

MOST_TRIES = 3
"""So often in a row somebody may fall behind without having given anything."""

MOST_REMEMBERED = 4096


@dataclass(frozen=True)
class _Mark:
    """How far a volunteer was at a time."""

    at_s: float
    step: int
    taken_bytes: int


@dataclass
class _Pace:
    """`had_all`: when nothing was left to send to it, or it joined. `judged`: since when averages become fewer."""

    had_all: _Mark
    judged: _Mark | None = None


class KeepingUp:
    """All visitors of one backbone that have joined. It belongs to the backbone's thread."""

    def __init__(self, packing: Packing, now: Callable[[], float]) -> None:
        self._now = now
        self._average_bytes = sum(form.elements * form.element_bytes for form in packing.sent)
        most_bytes = max(HELD_BYTES, WAITING_GRADIENTS * 4 * packing.summed[0].elements)
        self._most = max(MOST_WAITING, most_bytes // (self._average_bytes + MESSAGE_BYTES * len(packing.sent)))
        self._paces: dict[int, _Pace] = {}  # by line
        self._tries: dict[str, int] = {}  # by key: how often in a row it fell behind

    def look(
        self, visitor: Visitor, step: int, handed_on: int = 0, *, state_is_late: bool = False
    ) -> tuple[str, bool] | None:
        """Why it has to be put out now, and whether it may return; None where it keeps up. `step`: so many were made.
        `handed_on`: so much may wait besides averages. `state_is_late`: it had time enough to take it."""
        reason = self._reason(visitor, step, handed_on, state_is_late)
        return self._put_out(visitor, reason) if reason else None

    def left(self, visitor: Visitor) -> None:
        """Its line has ended."""
        self._paces.pop(visitor.line, None)

    def _reason(self, visitor: Visitor, step: int, handed_on: int, state_is_late: bool) -> str:
        outgoing = visitor.outgoing
        now = _Mark(self._now(), step, outgoing.taken_bytes)
        pace = self._paces.setdefault(visitor.line, _Pace(now))
        if not outgoing:
            pace.had_all = now
        since, reason, slow = pace.had_all, "", "it takes averages more slowly than they are made"
        if state_is_late:
            reason = "it did not take the state in time"
        elif visitor.caught_up:
            reason = slow if len(outgoing) > MOST_WAITING + handed_on else ""
        elif len(outgoing) > self._most:
            reason = "more averages were made than can wait until it has the state"
        elif visitor.holds_state and (pace.judged is None or step >= pace.judged.step + JUDGED):
            before, pace.judged = pace.judged, now
            made = 0 if before is None else (step - before.step) * self._average_bytes
            if before is not None and now.taken_bytes - before.taken_bytes < made:
                since, reason = before, slow
        return reason and f"{reason}{self._figures(since, now)}"

    def _put_out(self, visitor: Visitor, reason: str) -> tuple[str, bool]:
        if visitor.person is None:  # a machine that stands by
            return reason, True
        key = visitor.person.key
        tries = self._tries.pop(key, 0) * (not visitor.gave) + 1
        if tries >= MOST_TRIES:
            return f"{reason}; it fell behind {tries} times: its link or its machine is too slow for these steps", False
        self._tries[key] = tries
        if len(self._tries) > MOST_REMEMBERED:
            del self._tries[next(iter(self._tries))]
        return reason, True

    def _figures(self, since: _Mark, now: _Mark) -> str:
        seconds, steps = now.at_s - since.at_s, now.step - since.step
        if seconds <= 0 or steps <= 0:
            return ""
        took, needs = (
            8e-6 * n_bytes / seconds for n_bytes in (now.taken_bytes - since.taken_bytes, steps * self._average_bytes)
        )
        return f": it took {took:.3g} Mbit/s, and the averages, every {seconds / steps:.3g} s, are {needs:.3g} Mbit/s"
