"""A machine that stands by adds up a share: its side of an epoch (decision 205). Who joins may take the state here, too
(giving.py).

In: what the serving backbone says of epochs, tickets and steps, and volunteers that bring tickets and send their parts.
Out: for each part that has come whole how far it is from the last mean, or why it is refused; the mean of those that
are counted, to the serving backbone first, then to volunteers. It decides nothing: what counts, by how much, and when a
mean is made is said by the serving backbone. Whoever speaks without a ticket ends its own line.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from ravnest.collaboration.giving import Giving
from ravnest.collaboration.link_rates import LinkRate
from ravnest.collaboration.messages import (
    PROTOCOL,
    AdmitMessage,
    AliveMessage,
    ChallengeMessage,
    CountMessage,
    GiveMessage,
    GotMessage,
    HelpMessage,
    MakeMeanMessage,
    PartMessage,
    PieceMessage,
    RatesMessage,
    RelayMessage,
    TensorMessage,
    TicketMessage,
    TransferMessage,
    WithoutMessage,
)
from ravnest.collaboration.packing import Packing
from ravnest.collaboration.shares import Division, in_part
from ravnest.collaboration.step_sum import PartSum
from ravnest.collaboration.transfers import AVERAGES_FIRST, Incoming, Outgoing
from ravnest.errors import InvalidInput, RunFailed
from ring_allreduce.transport import LineClosed, LineEvent, LineOpened, Lines, LineSaid, Message

ALIVE_S = 5.0
"""Whoever has a line hears something at least this often, unless the machine writes its state for longer."""

TICKET_S = 30.0
NEXT_TICKET_S = 600.0
"""Who has brought one has so long to bring that of the next epoch: it hears of that when a micro-batch is made."""

MOST_LINES, MOST_UNKNOWN = 512, 64
"""Lines in all, and lines without a ticket that is known: beyond, the oldest of these gives way."""

MOST_HELD = 8
"""A volunteer may have sent so many parts that are neither counted nor forgotten: while fewer than three people are
known all of a step wait for its end, and a step that is collected further takes one of each volunteer every time."""

MOST_WAITING = 8
"""A volunteer for which more means wait than that takes too little: its line is ended. The serving backbone puts it out
sooner, which costs nobody else anything."""


@dataclass(eq=False)
class _Guest:
    """A line of a volunteer. `visit`: by which the backbone knows it; −1: its ticket is not known yet."""

    line: int
    opened_s: float
    ticket: bytes = b""
    visit: int = -1
    known: bool = False
    """It has brought a ticket, in this epoch or before."""
    outgoing: Outgoing = field(default_factory=Outgoing)
    incoming: Incoming | None = None
    taken: int = 0
    number: int = 0


class Helping:
    """What this machine adds up, on the line to one serving backbone. It belongs to the thread that follows."""

    def __init__(
        self,
        packing: Packing,
        most_samples: int,
        lines: Lines,
        line: int,
        last_mean: Callable[[], Mapping[str, Tensor] | None],
        standing: Callable[[], tuple[int, int]],
        giving: Giving,
        now: Callable[[], float],
        *,
        delayed: bool = False,
    ) -> None:
        """`line`: to the serving backbone. `most_samples`: of a contribution. `last_mean`: of the last step that this
        machine has made; None: none. `standing`: its term and step. `giving`: has the lines of who takes the state.
        `delayed`: steps are."""
        self._packing, self._most_samples = packing, most_samples
        self._lines, self._line, self._last_mean, self._standing, self._now = lines, line, last_mean, standing, now
        self._giving, self._delayed = giving, delayed
        self._epoch = self._part = 0
        self._division: Division | None = None
        self._sum: PartSum | None = None
        self._tickets: dict[bytes, int] = {}
        self._guests: dict[int, _Guest] = {}
        self._relayed: dict[int, _Guest] = {}  # by visit: whose parts come on the line to the serving backbone
        self._relaying: _Guest | None = None
        self._held: dict[tuple[int, int], tuple[dict[str, Tensor], int]] = {}
        self._gone: set[int] = set()
        self._serving = Outgoing()
        self._made = self._told = -1
        self._up, self._down = LinkRate(), LinkRate()
        self._alive_s = self._made_s = self._states_from_s = now()

    # The serving backbone.

    def hear(self, message: Message) -> dict[str, Tensor] | None:
        """What the serving backbone says of shares; a mean's own part where it was made now.

        Raises InvalidInput, RunFailed for what a backbone never says."""
        match message:
            case HelpMessage():
                self._begin(message)
            case AdmitMessage(visit=visit, ticket=ticket):
                self._admit(visit, ticket)
            case CountMessage(epoch=epoch) if epoch == self._epoch:
                self._count(message)
            case MakeMeanMessage(epoch=epoch) if epoch == self._epoch:
                return self._make_mean(message)
            case WithoutMessage(epoch=epoch) if epoch == self._epoch:
                self.end()
            case GiveMessage():
                self._giving.told(message)
                for guest in list(self._guests.values()):  # its ticket may have come before this word
                    self._welcome(guest)
            case GotMessage(pieces=pieces):
                self._up.passed((pieces - self._serving.taken) * self._packing.sent[0].piece_bytes, self._now())
                self._serving.got(pieces)
                self._pump()
        return None

    def end(self) -> None:
        """The epoch is over; what was sent by it counts no more."""
        self._epoch, self._division, self._sum = 0, None, None
        self._held, self._tickets, self._gone = {}, {}, set()
        self._relayed, self._relaying = {}, None
        for guest in list(self._guests.values()):
            self._hang_up(guest, "the epoch is over")

    @property
    def epoch(self) -> tuple[int, int]:
        """The epoch in which it helps, and its part; 0 where it does not."""
        return self._epoch, self._part

    def _begin(self, message: HelpMessage) -> None:
        division = Division(self._packing, message.bounds)
        if not 0 < message.part < division.parts:
            raise RunFailed(f"part {message.part} of {division.parts}")
        self._epoch, self._part, self._division = message.epoch, message.part, division
        self._sum, self._held, self._tickets = PartSum(division.packing_of(self._part)), {}, {}
        self._relayed, self._relaying = {}, None
        last = self._last_mean()
        if last is not None:
            self._sum.begin_from(division.vectors_of(self._part, last))
        for guest in self._guests.values():  # they bring new tickets
            guest.visit, guest.ticket, guest.incoming, guest.number = -1, b"", None, 0
            guest.opened_s = self._now()

    def _admit(self, visit: int, ticket: bytes) -> None:
        if ticket:
            self._tickets[ticket] = visit
            for guest in self._guests.values():
                self._welcome(guest)
            return
        self._tickets = {one: other for one, other in self._tickets.items() if other != visit}
        self._gone.add(visit)  # what it has sent may still count in this step
        self._relayed.pop(visit, None)
        for guest in [one for one in self._guests.values() if one.visit == visit]:
            self._hang_up(guest, "it has left")

    def _count(self, message: CountMessage) -> None:
        held = self._held.pop((message.visit, message.number), None)
        if message.scale is None:
            return
        if held is None or self._sum is None:
            raise RunFailed(f"contribution {message.number} of visit {message.visit} is not here")
        vectors, samples = held
        self._sum.samples += samples
        for name, vector in vectors.items():
            self._sum.add_scaled(name, vector, samples, message.scale)

    def _make_mean(self, message: MakeMeanMessage) -> dict[str, Tensor]:
        assert self._sum is not None
        said, mean = self._sum.finish(message.step)
        said = in_part(said, self._epoch, self._part)
        self._made, now_s = message.step, self._now()
        self._states_from_s, self._made_s = now_s + AVERAGES_FIRST * (now_s - self._made_s), now_s
        self._held = {key: one for key, one in self._held.items() if key[0] not in self._gone}
        self._gone = set()
        self._down.step_ended()
        self._serving.put(iter(said))
        wanted = set(message.visits)
        for guest in list(self._guests.values()):
            if guest.visit in wanted:
                guest.outgoing.put(iter(said))
            if len(guest.outgoing) > MOST_WAITING:
                self._hang_up(guest, "it takes means more slowly than they are made")
        self._pump()
        return mean

    # Volunteers.

    def take(self, event: LineEvent) -> None:
        """Something has happened on a line that is not the serving backbone's."""
        if event.line in self._giving:
            self._giving.hear(event)
            return
        match event:
            case LineOpened(line=line):
                self._open(line)
            case LineClosed(line=line):
                self._guests.pop(line, None)
            case LineSaid(line=line) if line in self._guests:
                guest = self._guests[line]
                try:
                    self._hear_guest(guest, event)
                except InvalidInput as error:
                    self._hang_up(guest, str(error))

    def relays(self, message: RelayMessage) -> None:
        """What the serving backbone sends next is a part of a volunteer that does not reach this machine."""
        guest = _Guest(self._line, self._now(), visit=message.visit, known=True)
        of_this = message.epoch == self._epoch
        self._relaying = self._relayed.setdefault(message.visit, guest) if of_this else _Guest(self._line, self._now())

    def relay_ends(self) -> None:
        """What the serving backbone sends next is its own."""
        self._relaying = None

    @property
    def takes_relayed(self) -> bool:
        """Whether what the serving backbone sends is a volunteer's."""
        return self._relaying is not None

    def take_relayed(
        self, message: TransferMessage | TensorMessage | PieceMessage, tensors: tuple[Tensor, ...]
    ) -> None:
        """The next message of such a part."""
        assert self._relaying is not None
        self._contribution(self._relaying, message, tensors)

    def _open(self, line: int) -> None:
        unknown = [guest for guest in self._guests.values() if not guest.known]
        if len(self._guests) >= MOST_LINES and not unknown:
            self._lines.hang_up(line, "no place")
            return
        if len(unknown) >= MOST_UNKNOWN or len(self._guests) >= MOST_LINES:
            self._hang_up(unknown[0], "too many have no ticket")
        self._guests[line] = _Guest(line, self._now())
        term, step = self._standing()
        self._lines.send(line, ChallengeMessage(protocol=PROTOCOL, nonce=b"", term=term, step=step, serves=False))

    def _hear_guest(self, guest: _Guest, event: LineSaid) -> None:
        message = event.message
        if isinstance(message, TicketMessage):
            guest.ticket, guest.visit, guest.incoming, guest.number = message.ticket, -1, None, 0
            self._welcome(guest)
        elif not guest.known:
            raise InvalidInput(f"{type(message).__name__} without a ticket")
        elif isinstance(message, GotMessage):
            before = guest.outgoing.taken
            guest.outgoing.got(message.pieces)
            self._up.passed((message.pieces - before) * self._packing.sent[0].piece_bytes, self._now())
            self._pump()
        elif isinstance(message, TransferMessage | TensorMessage | PieceMessage):
            self._contribution(guest, message, event.tensors)
        else:
            raise InvalidInput(f"{type(message).__name__} is nothing that a volunteer says to a helper")

    def _welcome(self, guest: _Guest) -> None:
        """Answer who has brought a ticket that is known."""
        if self._giving.begins(guest.line, guest.ticket):
            del self._guests[guest.line]
        elif guest.visit < 0 and guest.ticket in self._tickets:
            guest.visit, guest.known = self._tickets.pop(guest.ticket), True
            self._lines.trust(guest.line)
            self._lines.send(guest.line, AliveMessage(step=self._standing()[1], epoch=self._epoch))

    def _contribution(
        self, guest: _Guest, message: TransferMessage | TensorMessage | PieceMessage, tensors: tuple[Tensor, ...]
    ) -> None:
        try:
            if isinstance(message, TransferMessage):
                self._began(guest, message)
            elif guest.incoming is not None and isinstance(message, TensorMessage):
                guest.incoming.take_tensor(message)
            elif guest.incoming is not None and isinstance(message, PieceMessage):
                self._down.passed(sum(one.numel() * one.element_size() for one in tensors), self._now())
                guest.incoming.take_piece(message, tensors)
        except InvalidInput as error:
            guest.incoming = None
            self._came(guest, 0, 0, 0.0, str(error)[:400])
        finally:
            if isinstance(message, PieceMessage) and guest.line != self._line:
                guest.taken += 1
                self._lines.send(guest.line, GotMessage(pieces=guest.taken))
        incoming = guest.incoming
        if incoming is not None and incoming.whole and self._sum is not None:
            guest.incoming = None
            self._held[guest.visit, guest.number] = incoming.vectors, incoming.samples
            ((name, vector),) = incoming.vectors.items()
            deviation = min(self._sum.deviation(name, vector, incoming.samples), 1e38)
            self._came(guest, incoming.step, incoming.samples, deviation, "")

    def _began(self, guest: _Guest, message: TransferMessage) -> None:
        """Raises InvalidInput for what is no part of a contribution."""
        guest.incoming = None
        if self._division is None or message.epoch != self._epoch or guest.visit < 0:
            return  # of an epoch that is over
        if sum(visit == guest.visit for visit, _ in self._held) >= MOST_HELD:
            raise InvalidInput("it sends parts whose other parts do not come")
        of_this = message.what == "contribution" and message.part == self._part
        if not of_this or not 0 < message.samples <= self._most_samples:
            raise InvalidInput(f"part {message.part} of a {message.what} of {message.samples} samples")
        guest.incoming = self._division.packing_of(self._part).incoming(message)

    def _came(self, guest: _Guest, step: int, samples: int, deviation: float, refused: str) -> None:
        part = PartMessage(
            epoch=self._epoch, visit=guest.visit, number=guest.number, step=step, samples=samples, deviation=deviation,
            refused=refused,
        )  # fmt: skip
        guest.number += 1
        self._lines.send(self._line, part)

    def _hang_up(self, guest: _Guest, reason: str) -> None:
        if self._guests.pop(guest.line, None) is not None:
            self._lines.hang_up(guest.line, reason)

    # Time.

    def tend(self) -> None:
        """To be called about once a second."""
        now_s = self._now()
        for guest in list(self._guests.values()):
            if guest.visit < 0 and now_s > guest.opened_s + (NEXT_TICKET_S if guest.known else TICKET_S):
                self._hang_up(guest, "it has no ticket that is known")
        if now_s >= self._alive_s + ALIVE_S:
            self._alive_s = now_s
            said = AliveMessage(step=self._standing()[1])
            for line in (self._line, *(guest.line for guest in self._guests.values() if guest.visit >= 0)):
                self._lines.send(line, said)
            self._giving.say_alive()
        self._pump()

    def _pump(self) -> None:
        """The serving backbone's pieces first: nobody may apply a mean before it holds all of it. Lines share the link:
        where it opens the next step with that mean, volunteers wait until it has it. States wait for means as there."""
        waiting: Iterable[tuple[int, Outgoing]] = [
            (self._line, self._serving),
            *((guest.line, guest.outgoing) for guest in self._guests.values()),
        ]
        for line, outgoing in waiting:
            waits = self._delayed and outgoing is not self._serving and not self._serving.settled
            for said in () if waits else outgoing.due():
                self._lines.send(line, *said)
        settled = all(outgoing.settled for _, outgoing in waiting)
        self._giving.pump(waits=not settled and self._now() < self._states_from_s)
        if self._made > self._told and settled:
            self._told = self._made
            self._up.step_ended()
            rates = RatesMessage(
                step=self._made, up_bytes_per_s=self._up.bytes_per_s, down_bytes_per_s=self._down.bytes_per_s
            )
            self._lines.send(self._line, rates)
