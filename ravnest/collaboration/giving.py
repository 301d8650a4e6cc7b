"""A machine that stands by hands over the state: its side of decision 245.

In: what the serving backbone says of who may take it, and volunteers that bring its tickets. Out: the state of this
machine's step, once that is as far as the volunteer needs, in pieces that wait for means (pump.py). Which volunteers
come here is said by the serving backbone (admissions.py).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from ravnest.collaboration.messages import AliveMessage, GiveMessage, GotMessage
from ravnest.collaboration.transfers import STATE_WINDOW, Form, Outgoing, pieces
from ravnest.errors import InvalidInput
from ring_allreduce.transport import LineClosed, LineEvent, Lines, LineSaid


@dataclass(eq=False)
class _Taker:
    """A line on which the state is taken, of `least` or a later step."""

    visit: int
    least: int
    outgoing: Outgoing = field(default_factory=Outgoing)
    begun: bool = False


class Giving:
    """Who takes the state here, on the line to one serving backbone. It belongs to the thread that follows."""

    def __init__(
        self,
        state: Callable[[], tuple[int, Sequence[tuple[Form, Tensor]]]],
        step: Callable[[], int],
        lines: Lines,
    ) -> None:
        """`state`: the step and the vectors, which nobody changes. `step`: how far this machine is."""
        self._state, self._step, self._lines = state, step, lines
        self._tickets: dict[bytes, GiveMessage] = {}
        self._takers: dict[int, _Taker] = {}

    def __contains__(self, line: int) -> bool:
        """Whether the state is taken on this line."""
        return line in self._takers

    def told(self, message: GiveMessage) -> None:
        """The serving backbone lets a volunteer take the state, or no more."""
        if message.ticket:
            self._tickets[message.ticket] = message
            return
        self._tickets = {ticket: one for ticket, one in self._tickets.items() if one.visit != message.visit}
        for line in [line for line, taker in self._takers.items() if taker.visit == message.visit]:
            self._hang_up(line, "it needs no state any more")

    def begins(self, line: int, ticket: bytes) -> bool:
        """Who has opened this line brings a ticket: whether it is one of those, which no other line may bring again."""
        told = self._tickets.pop(ticket, None)
        if told is None:
            return False
        self._takers[line] = _Taker(told.visit, told.step)
        self._lines.trust(line)
        self.say_alive()
        return True

    def hear(self, event: LineEvent) -> None:
        """Something has happened on one of these lines."""
        if isinstance(event, LineClosed):
            del self._takers[event.line]
            return
        message = event.message if isinstance(event, LineSaid) else None
        try:
            if not isinstance(message, GotMessage):
                raise InvalidInput(f"{type(message).__name__} is nothing that who takes the state says")
            self._takers[event.line].outgoing.got(message.pieces)
        except InvalidInput as error:
            self._hang_up(event.line, str(error))

    def pump(self, *, waits: bool) -> None:
        """Send what may be sent. `waits`: means are under way, for which states wait."""
        for line, taker in self._takers.items():
            if not taker.begun and self._step() >= taker.least:
                step, vectors = self._state()
                taker.outgoing.put(pieces("state", step, 0, vectors))
                taker.begun = True
            for said in () if waits else taker.outgoing.due(STATE_WINDOW):
                self._lines.send(line, *said)

    def say_alive(self) -> None:
        """Who waits for the state hears that this machine lives."""
        for line in self._takers:
            self._lines.send(line, AliveMessage(step=self._step()))

    def end(self) -> None:
        """Nobody takes the state here any more."""
        self._tickets = {}
        for line in list(self._takers):
            self._hang_up(line, "this machine hands over no state")

    def _hang_up(self, line: int, reason: str) -> None:
        del self._takers[line]
        self._lines.hang_up(line, reason)
