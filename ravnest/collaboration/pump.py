"""What is sent to whom first: averages, then the states of those who join.

In: visitors, and what waits for each of them. Out: messages on their lines, while few pieces are under way to each. A
state is several times an average, and all cross one link, so states wait for averages (decision 129).
"""

from collections.abc import Callable, Mapping

from ravnest.collaboration.visitor import Visitor
from ring_allreduce.transport import Lines

STATES_AT_ONCE = 8
STATE_WINDOW = 2
"""So many volunteers take the state at a time, and so many pieces are under way to each. Others wait for their turn."""

AVERAGES_FIRST = 0.5
"""While averages are under way, states wait for this part of a step: who joins delays nobody's step."""


class Pump:
    """Sends what may be sent. It belongs to the backbone's thread."""

    def __init__(
        self,
        visitors: Mapping[int, Visitor],
        lines: Lines,
        now: Callable[[], float],
        join: Callable[[Visitor], None],
        has_joined: Callable[[Visitor], None],
    ) -> None:
        """`visitors`: all of them, by line. `join`: puts the state into a visitor's queue. `has_joined`: it
        was taken."""
        self._visitors, self._lines, self._now = visitors, lines, now
        self._join, self._has_joined = join, has_joined
        self._states_from_s = now()

    def committed(self, took_s: float) -> None:
        """A step was committed that took so long: its average goes first for a while."""
        self._states_from_s = self._now() + AVERAGES_FIRST * took_s

    def pump(self) -> None:
        """Send averages, then states of who joins, in the order in which they have come."""
        joined = [visitor for visitor in self._visitors.values() if visitor.joined]
        states = [visitor for visitor in joined if visitor.takes_state]
        for visitor in joined:
            if visitor.takes_state:
                continue
            for said in visitor.outgoing.due():
                self._lines.send(visitor.line, *said)
        averaging = any(not visitor.outgoing.settled for visitor in joined if not visitor.takes_state)
        if averaging and self._now() < self._states_from_s:
            return
        for visitor in self._visitors.values():
            if visitor.agreed and not visitor.joined and len(states) < STATES_AT_ONCE:
                self._join(visitor)
                states.append(visitor)
        for visitor in states:
            for said in visitor.outgoing.due(STATE_WINDOW):
                self._lines.send(visitor.line, *said)
            visitor.takes_state = not visitor.outgoing.settled
            if not visitor.takes_state:
                self._has_joined(visitor)
