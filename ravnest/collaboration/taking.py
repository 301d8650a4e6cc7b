"""Who joins takes the state from a machine that stands by, and holds the averages that come meanwhile (decision 245).

In: the serving backbone's word where the state is, what that machine sends, and averages on the line to the backbone.
Out: the state, and after it the averages that it does not have yet, as they came; or the word that the state did not
come, and then the backbone sends its own. A machine that is not reached, lost, silent, too slow or sends anything else,
and averages that take too much memory, end in that word: nobody waits for longer than SILENT_S or STALLED_S.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ravnest.collaboration.helper_lines import DIAL_S, SILENT_S
from ravnest.collaboration.invitation import BACKBONE, endpoint
from ravnest.collaboration.messages import (
    AliveMessage,
    ChallengeMessage,
    GotMessage,
    PieceMessage,
    TakeMessage,
    TensorMessage,
    TicketMessage,
    TookMessage,
    TransferMessage,
)
from ravnest.collaboration.transfers import Form, Incoming
from ravnest.errors import InvalidInput, RavnestError
from ring_allreduce.transport import Keys, LineClosed, LineEvent, Lines, LineSaid

STALLED_S = 300.0
"""The next piece of the state may take so long: it waits for means, and its machine for averages that it lacks."""

HELD_GRADIENTS = 4
HELD_BYTES = 64 << 20
"""Averages that are held have as many bytes as so many gradients in float32, or so many: the state of Adam has three
gradients'."""

MESSAGE_BYTES = 500
"""A message without tensors counts as so many."""


@dataclass
class _Held:
    """The messages of one average so far."""

    step: int
    said: list[LineSaid] = field(default_factory=list)
    n_bytes: int = 0


class Taking:
    """How the state comes to one visit, if not on the visit's own line. It belongs to the visit's thread."""

    def __init__(
        self,
        forms: Callable[[int], Sequence[Form]],
        elements: int,
        lines: Lines,
        line: int,
        keys: Keys | None,
        tell: Callable[[str], None],
        now: Callable[[], float],
    ) -> None:
        """`forms`: the vectors that the state of a step has. `elements`: of a gradient. `line`: to the backbone."""
        self._forms, self._lines, self._line, self._keys, self._tell, self._now = forms, lines, line, keys, tell, now
        self._most_bytes = max(HELD_BYTES, HELD_GRADIENTS * 4 * elements)
        self.line: int | None = None
        """To the machine that hands the state over, while it does."""
        self._told: TakeMessage | None = None
        self._failed = False
        self._incoming: Incoming | None = None
        self._held: list[_Held] = []
        self._taken = 0
        self._heard_s = self._moved_s = 0.0

    def told(self, message: TakeMessage) -> None:
        """Begin. Raises InvalidInput where this was said before."""
        if self._told is not None:
            raise InvalidInput("it says for the second time where the state is")
        self._told = message
        try:
            if self._keys is None:
                raise InvalidInput("there are no keys to open a line with")
            self.line = self._lines.dial(*endpoint(message.address), self._keys, BACKBONE, DIAL_S)
        except RavnestError as error:
            self._fail(str(error))
            return
        self._heard_s = self._moved_s = self._now()
        self._lines.send(self.line, TicketMessage(ticket=message.ticket))

    def holds(self, event: LineSaid) -> bool:
        """Whether what has come on the line to the backbone is of an average that waits for the state, and is kept
        here; or that the backbone's own state will have. Raises InvalidInput."""
        message = event.message
        if not isinstance(message, TransferMessage | TensorMessage | PieceMessage):
            return False
        if isinstance(message, TransferMessage) and message.what == "state":
            self._leave("the backbone sends the state itself")
            self._failed = False
        if self._failed or self.line is None:
            return self._failed
        if isinstance(message, TransferMessage):
            self._held.append(_Held(message.step))
            self._drop()
        if not self._held:
            raise InvalidInput(f"{type(message).__name__} out of turn")
        self._held[-1].said.append(event)
        self._held[-1].n_bytes += MESSAGE_BYTES + sum(one.numel() * one.element_size() for one in event.tensors)
        if sum(one.n_bytes for one in self._held) > self._most_bytes:
            self._fail(f"{len(self._held)} averages came meanwhile, more than are held", slow=True)
        return True

    def hear(self, event: LineEvent) -> Incoming | None:
        """Something has happened on the line to the machine that hands the state over; the state, once it is whole."""
        self._heard_s = self._now()
        try:
            if isinstance(event, LineClosed):
                raise InvalidInput(f"its line has ended: {event.reason}")
            if isinstance(event, LineSaid):
                self._take(event)
        except InvalidInput as error:
            self._fail(str(error))
        return self._incoming if self._incoming is not None and self._incoming.whole else None

    def tend(self) -> None:
        """Leave a machine that is silent, or sends nothing of the state."""
        if self.line is None:
            return
        for since_s, most_s in ((self._heard_s, SILENT_S), (self._moved_s, STALLED_S)):
            if self.line is not None and self._now() > since_s + most_s:
                self._fail(f"nothing came of it for {most_s:.0f} s")

    def ends(self) -> list[LineSaid]:
        """The state is loaded: what was held of averages that it does not have, and of the one that is coming in."""
        self._drop()
        held = [event for one in self._held for event in one.said]
        self._leave("it has the state")
        return held

    def _take(self, event: LineSaid) -> None:
        assert self._told is not None
        assert self.line is not None
        match event.message:
            case ChallengeMessage(serves=False) | AliveMessage():
                pass
            case TransferMessage(what="state", step=step) as began if self._incoming is None:
                if step < self._told.step:
                    raise InvalidInput(f"a state of step {step} where one of {self._told.step} was due")
                self._incoming = Incoming(began, self._forms(step))
                self._drop()
            case TensorMessage() as tensor if self._incoming is not None:
                self._incoming.take_tensor(tensor)
            case PieceMessage() as piece if self._incoming is not None:
                self._incoming.take_piece(piece, event.tensors)
                self._taken += 1
                self._moved_s = self._now()
                self._lines.send(self.line, GotMessage(pieces=self._taken))
            case other:
                raise InvalidInput(f"{type(other).__name__} is nothing that hands over a state")

    def _drop(self) -> None:
        """Forget averages that the state has, but not the one whose pieces are still to come."""
        if self._incoming is not None:
            self._held = [one for one in self._held[:-1] if one.step >= self._incoming.step] + self._held[-1:]

    def _fail(self, reason: str, *, slow: bool = False) -> None:
        assert self._told is not None
        self._tell(f"{self._told.address} hands over no state, and the backbone is asked for it: {reason}")
        self._leave(reason)
        self._failed = True
        self._lines.send(self._line, TookMessage(step=None, slow=slow))

    def _leave(self, reason: str) -> None:
        if self.line is not None:
            self._lines.hang_up(self.line, reason)
        self.line, self._incoming, self._held = None, None, []
