"""A volunteer's side of shares: its lines to helpers, its parts on their way, and averages that come in parts.

In: what the backbone says of epochs, and what comes on lines to helpers. Out: lines that are open, contributions in
their parts, and averages that may be applied. What was sent in parts is kept as it was sent, until its average has
come: if the epoch is given up before, it is sent again, whole, to the backbone. A helper that is lost or silent is told
of, and what it owes of averages that were made is asked of the backbone.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from ravnest.collaboration.average_parts import AverageParts
from ravnest.collaboration.invitation import BACKBONE, endpoint
from ravnest.collaboration.messages import (
    AliveMessage,
    ChallengeMessage,
    GotMessage,
    MissingMessage,
    PieceMessage,
    ReachedMessage,
    SharesMessage,
    TensorMessage,
    TicketMessage,
    TransferMessage,
)
from ravnest.collaboration.packing import Packing
from ravnest.collaboration.transfers import Incoming, Outgoing, Said
from ravnest.errors import InvalidInput, RavnestError
from ring_allreduce.transport import Keys, LineClosed, LineEvent, Lines, LineSaid

DIAL_S = 5.0
"""Nothing is computed while a helper is dialled."""

SILENT_S = 30.0
"""A helper that works says something every ALIVE_S; it may write its state for some time."""


@dataclass(eq=False)
class _Helper:
    address: str
    line: int
    heard_s: float
    parts: dict[int, int] = field(default_factory=dict)
    """By epoch: its part."""
    ready: bool = False
    outgoing: Outgoing = field(default_factory=Outgoing)
    incoming: Incoming | None = None
    taken: int = 0


class HelperLines:
    """All lines of one visit but that to the backbone. It belongs to the visit's thread."""

    def __init__(
        self,
        packing: Packing,
        lines: Lines,
        line: int,
        keys: Keys | None,
        tell: Callable[[str], None],
        now: Callable[[], float],
    ) -> None:
        """`line`: to the backbone."""
        self.averages = AverageParts(packing)
        self._lines, self._line, self._keys, self._tell, self._now = lines, line, keys, tell, now
        self._epoch = 0
        self._helpers: dict[int, _Helper] = {}
        self._of_step: dict[int, int] = {}  # the epoch by which a step's contributions are sent
        self._sent: dict[int, list[list[Said]]] = {}  # by step: contributions as they were sent in parts
        self._asked_s: dict[tuple[int, int], float] = {}
        self._main: list[object] = []  # their transfers to the backbone, which may be under way

    # What the backbone says.

    def told(self, message: SharesMessage) -> None:
        """An epoch begins: dial who helps in it. Raises InvalidInput for ranges that are none."""
        division = self.averages.know(message.epoch, message.bounds)
        if division.parts != len(message.addresses) + 1:
            raise InvalidInput(f"{len(message.addresses)} helpers for {division.parts} parts")
        before = {helper.address: helper for helper in self._helpers.values()}
        self._epoch, self._helpers = message.epoch, {}
        for part, address in enumerate(message.addresses, 1):
            helper = before.pop(address, None) or self._dialled(address)
            if helper is None:
                self._lines.send(self._line, ReachedMessage(epoch=message.epoch, lost=part))
                continue
            helper.parts[message.epoch], helper.ready = part, False
            self._helpers[helper.line] = helper
            self._lines.send(helper.line, TicketMessage(ticket=message.ticket))
        for helper in before.values():
            self._lines.hang_up(helper.line, "it adds up no share any more")

    def opened(self, step: int, epoch: int) -> None:
        """A step opens: contributions to it are sent by this epoch's ranges; 0: whole. Raises InvalidInput."""
        if epoch:
            self.averages.division(epoch)
            self._of_step[step] = epoch
        else:
            self._of_step.pop(step, None)

    def without(self, epoch: int, step: int, outgoing: Outgoing) -> None:
        """An epoch is over. What was sent by it to steps from this one on is put into `outgoing`, whole."""
        self.averages.not_made(epoch)
        for helper in list(self._helpers.values()) if epoch == self._epoch else []:
            self._lines.hang_up(helper.line, "the epoch is over")
            del self._helpers[helper.line]
        self._of_step = {at: one for at, one in self._of_step.items() if one != epoch}
        for transfer in self._main:
            outgoing.cancel(transfer)
        self._main = []
        for at in sorted(at for at in self._sent if at >= step):  # what is older may be asked for by another word
            for said in self._sent.pop(at):
                outgoing.put(iter(said))

    def send(self, step: int, said: Iterator[Said], outgoing: Outgoing) -> None:
        """Send a contribution: to the backbone by `outgoing`, and to helpers where its step has an epoch."""
        epoch = self._of_step.get(step)
        if epoch is None:
            outgoing.put(said)
            return
        sent = list(said)
        parts = self.averages.division(epoch).split(sent, epoch)
        self._sent.setdefault(step, []).append(sent)
        self._main.append(transfer := iter(parts[0]))
        outgoing.put(transfer)
        for helper in self._helpers.values():
            if (part := helper.parts.get(epoch)) is not None:
                helper.outgoing.put(iter(parts[part]))

    def took(self, step: int) -> None:
        """The average of this step has come: what was sent for it is not asked for again."""
        self._sent = {at: said for at, said in self._sent.items() if at > step}
        self._of_step = {at: epoch for at, epoch in self._of_step.items() if at > step}
        self._asked_s = {key: at_s for key, at_s in self._asked_s.items() if key[0] > step}
        if not self._sent:
            self._main = []

    # What helpers say.

    def hear(self, event: LineEvent, due: int) -> None:
        """Something has happened on a line that is not the backbone's. `due`: the step whose average comes next."""
        helper = self._helpers.get(event.line)
        if helper is None:
            return
        if isinstance(event, LineClosed):
            self._lost(helper, event.reason)
            return
        helper.heard_s = self._now()
        if not isinstance(event, LineSaid):
            return
        try:
            self._hear(helper, event, due)
        except InvalidInput as error:
            self._lost(helper, f"it sent what cannot be: {error}")

    def tend(self) -> None:
        """Send what may be sent, and leave who is silent."""
        now_s = self._now()
        for helper in list(self._helpers.values()):
            if now_s > helper.heard_s + SILENT_S:
                self._lost(helper, f"it said nothing for {SILENT_S:.0f} s")
                continue
            for said in helper.outgoing.due() if helper.ready else ():
                self._lines.send(helper.line, *said)
        for step, epoch, part in self.averages.lacking():
            owed = any(helper.parts.get(epoch) == part for helper in self._helpers.values())
            if not owed and now_s >= self._asked_s.get((step, part), -SILENT_S) + SILENT_S:
                self._asked_s[step, part] = now_s
                self._lines.send(self._line, MissingMessage(step=step, part=part))

    def _hear(self, helper: _Helper, event: LineSaid, due: int) -> None:
        match event.message:
            case ChallengeMessage(serves=False):
                pass
            case AliveMessage(epoch=epoch):  # of 0, or of an epoch before: it was under way when the ticket was sent
                if not helper.ready and epoch == self._epoch:
                    helper.ready = True
                    if all(one.ready for one in self._helpers.values()):
                        self._lines.send(self._line, ReachedMessage(epoch=self._epoch))
            case GotMessage(pieces=pieces):
                helper.outgoing.got(pieces)
            case TransferMessage(what="average", epoch=epoch) as began if epoch in helper.parts:
                helper.incoming = self.averages.incoming(began, due, helper.parts[epoch])
            case TensorMessage() as tensor:
                if helper.incoming is not None:
                    helper.incoming.take_tensor(tensor)
            case PieceMessage() as piece:
                helper.taken += 1
                self._lines.send(helper.line, GotMessage(pieces=helper.taken))
                if helper.incoming is not None:
                    helper.incoming.take_piece(piece, event.tensors)
            case other:
                raise InvalidInput(f"{type(other).__name__} is nothing that a helper says")
        incoming = helper.incoming
        if incoming is not None and incoming.whole:
            helper.incoming = None
            self.came(incoming, due)

    def came(self, incoming: Incoming, due: int) -> None:
        """A transfer of an average has come whole. One that has been applied already came from elsewhere, too."""
        if incoming.step >= due:
            self.averages.put(incoming.step, incoming.epoch, incoming.part, incoming.vectors)

    def _dialled(self, address: str) -> _Helper | None:
        try:
            host, port = endpoint(address)
            if self._keys is None:
                return None
            line = self._lines.dial(host, port, self._keys, BACKBONE, DIAL_S)
        except RavnestError as error:
            self._tell(f"{address} adds up a share, and is not reached: {error}")
            return None
        return _Helper(address, line, self._now())

    def _lost(self, helper: _Helper, reason: str) -> None:
        self._tell(f"{helper.address} adds up a share, and is lost: {reason}")
        self._lines.hang_up(helper.line, reason)
        del self._helpers[helper.line]
        if (part := helper.parts.get(self._epoch)) is not None:
            self._lines.send(self._line, ReachedMessage(epoch=self._epoch, lost=part))
