"""What is sent to whom first: averages, then the states of those who join.

In: visitors, and what waits for each of them. Out: messages on their lines, while few pieces are under way to each. A
state is several times an average, and all cross one link, so states wait for averages (decision 129). The averages that
were made meanwhile are averages, too; but nobody waits for them (decision 260).
"""

from collections.abc import Callable, Mapping

from ravnest.collaboration.transfers import AVERAGES_FIRST, STATE_WINDOW
from ravnest.collaboration.visitor import Visitor
from ring_allreduce.transport import Lines

STATES_AT_ONCE = 8
"""So many volunteers take the state at a time. Others wait for their turn."""


class Pump:
    """Sends what may be sent. It belongs to the backbone's thread."""

    def __init__(
        self,
        visitors: Mapping[int, Visitor],
        lines: Lines,
        now: Callable[[], float],
        join: Callable[[Visitor, bool], None],
        has_joined: Callable[[Visitor], None],
    ) -> None:
        """`visitors`: all of them, by line. `join`: puts the state into a visitor's queue, where it may be sent from
        here, or has it taken elsewhere. `has_joined`: it has the state, and all averages that were made meanwhile."""
        self._visitors, self._lines, self._now = visitors, lines, now
        self._join, self._has_joined = join, has_joined
        self._states_from_s = now()
        self._sent_s: float | None = None  # since when an average is on its way
        self._took_s = 0.0

    @property
    def averages_take_s(self) -> float:
        """How long the last average took until everyone had it who is not behind, or has taken so far, if longer."""
        return self._took_s if self._sent_s is None else max(self._took_s, self._now() - self._sent_s)

    def committed(self, took_s: float) -> None:
        """A step was committed that took so long: its average goes first for a while."""
        self._took_s, self._sent_s = self.averages_take_s, self._now()
        self._states_from_s = self._sent_s + AVERAGES_FIRST * took_s

    def pump(self, *, joins: bool = True) -> None:
        """Send averages, then states of who joins, in the order in which they have come. `joins`: whether the state is
        that before the next average."""
        joined = [visitor for visitor in self._visitors.values() if visitor.joined]
        states = [visitor for visitor in joined if visitor.takes_state]
        for visitor in joined:
            if visitor.takes_state:
                continue
            for said in visitor.outgoing.due():
                self._lines.send(visitor.line, *said)
            if not visitor.caught_up and not visitor.takes_elsewhere and visitor.outgoing.had_all:
                visitor.caught_up = True
                self._has_joined(visitor)
        averaging = any(not visitor.outgoing.settled for visitor in joined if visitor.caught_up)
        if not averaging and self._sent_s is not None:
            self._took_s, self._sent_s = self._now() - self._sent_s, None
        waits = averaging and self._now() < self._states_from_s
        for visitor in self._visitors.values() if joins else ():
            if not visitor.agreed or visitor.joined:
                continue
            self._join(visitor, not waits and len(states) < STATES_AT_ONCE)
            states += [visitor] if visitor.takes_state else []
            if not visitor.joined and not visitor.follows:  # there is no place: those after it wait, too
                break
        for visitor in () if waits else states:
            for said in visitor.outgoing.due(STATE_WINDOW):
                self._lines.send(visitor.line, *said)
            visitor.takes_state = visitor.outgoing.has_state
