"""Who joins, and from which backbone machine each takes the state: the side of the one that serves (decision 245).

In: volunteers that are ready to join, machines that stand by and listen, and how fast uplinks are. Out: the state in a
volunteer's queue, or the word where it is; and from then on the volunteer is sent every average. Who could not take it
elsewhere is sent this machine's own, instead of the averages that are in its queue, so nothing is missing there either.
"""

import math
import secrets
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ravnest.collaboration.backbone_state import BackboneState, ledger_message
from ravnest.collaboration.epochs import TICKET_BYTES, Epochs, Helper
from ravnest.collaboration.messages import GiveMessage, TakeMessage, TookMessage
from ravnest.collaboration.pump import STATES_AT_ONCE
from ravnest.collaboration.transfers import pieces
from ravnest.collaboration.visitor import Visitor
from ravnest.errors import InvalidInput
from ring_allreduce.transport import Lines

TAKE_S = 600.0
LEAST_BYTES_PER_S = 125_000.0
"""Who joins has so long to take the state, and the time of three gradients at 1 Mbit/s. Who does not may come back, and
keeps nobody else's place."""

REST_S = 300.0
"""A machine from which somebody did not get the state is named to nobody for so long."""


@dataclass(frozen=True)
class Uplink:
    """Of a machine that holds the state: how many take it there now, and bytes per second; 0: not known."""

    states: int
    bytes_per_s: float


def freest(own: Uplink | None, others: Sequence[Uplink]) -> int | None:
    """The place of the uplink with the fewest states under way for its rate: 0 is this machine's, which sends every
    average besides, so others come first where they are equal. None: all have STATES_AT_ONCE. A rate that is not known
    is taken to be this machine's. `own`: None where it carries no state now, and its rate is not known."""
    usual = (own.bytes_per_s if own is not None else 0.0) or max((one.bytes_per_s for one in others), default=0.0)
    uplinks = {at: one for at, one in enumerate((own, *others)) if one is not None and one.states < STATES_AT_ONCE}
    takes_s = {at: (one.states + 1) / (one.bytes_per_s or usual or 1.0) for at, one in uplinks.items()}
    return min(takes_s, key=lambda at: (takes_s[at], at == 0), default=None)


class Admissions:
    """It belongs to the backbone's thread."""

    def __init__(
        self,
        kept: BackboneState,
        epochs: Epochs,
        visitors: Mapping[int, Visitor],
        lines: Lines,
        tell: Callable[[str], None],
        now: Callable[[], float],
    ) -> None:
        """`visitors`: all of them, by line."""
        self._kept, self._epochs, self._visitors, self._lines = kept, epochs, visitors, lines
        self._tell, self._now = tell, now
        self._takes_s = TAKE_S + 3 * 4 * kept.trainer.packing.summed[0].elements / LEAST_BYTES_PER_S
        self._from: dict[int, Helper] = {}  # by line: where it takes the state, unless it is here
        self._until_s: dict[int, float] = {}  # by line
        self._rests_s: dict[str, float] = {}  # by address
        self._ending = False

    def end(self) -> None:
        """Training has ended: machines that stand by may go at any time."""
        self._ending = True

    def join(self, visitor: Visitor, own: bool) -> None:
        """Let it join, unless all machines have enough to do. `own`: whether this machine's uplink may carry a state
        now. The next average has to be that of the trainer's step."""
        helper: Helper | None = None
        now_s = self._now()
        helpers = [] if visitor.follows or self._ending else self._helpers(now_s)
        at = self._freest(helpers, own)
        if at is None:
            return
        visitor.joined = True
        self._until_s[visitor.line] = now_s + self._takes_s
        where = ""
        if at:
            helper = helpers[at - 1]
            visitor.takes_elsewhere = True
            self._from[visitor.line] = helper
            ticket, step = secrets.token_bytes(TICKET_BYTES), self._kept.trainer.step
            self._lines.send(helper.visitor.line, GiveMessage(visit=visitor.line, ticket=ticket, step=step))
            self._lines.send(visitor.line, TakeMessage(address=helper.address, ticket=ticket, step=step))
            where = f", and takes the state from {helper.address}"
        else:
            self._give(visitor)
        if visitor.follows:
            self._lines.send(visitor.line, ledger_message(self._kept.last_line, self._kept.people.text().encode()))
        volunteers = sum(one.joined and not one.follows for one in self._visitors.values())
        with_it = "1 volunteer" if volunteers == 1 else f"{volunteers} volunteers"
        self._tell(f"{visitor.name} joins at step {self._kept.trainer.step} ({with_it}){where}")

    def took(self, visitor: Visitor, message: TookMessage) -> None:
        """It has the state from elsewhere, or could not get it there. Raises InvalidInput where it was not to, or has
        another one."""
        if visitor.line not in self._from:
            raise InvalidInput("it was not told to take the state elsewhere")
        if message.step is not None and message.step > self._kept.trainer.step:
            raise InvalidInput(f"it has a state of step {message.step} at step {self._kept.trainer.step}")
        if message.step is not None:
            del self._from[visitor.line]
            visitor.takes_elsewhere = False
            visitor.outgoing.count_anew()
            return
        address = self._from[visitor.line].address
        if not message.slow:
            self._rests_s[address] = self._now() + REST_S
        self.left(visitor)
        self._until_s[visitor.line] = self._now() + self._takes_s
        self._give(visitor)
        self._tell(f"{visitor.name} got no state from {address}, and takes it from this machine")

    def left(self, visitor: Visitor) -> None:
        """It takes the state nowhere any more."""
        self._until_s.pop(visitor.line, None)
        helper = self._from.pop(visitor.line, None)
        visitor.takes_elsewhere = False
        if helper is not None and self._epochs.helpers.get(helper.visitor.line) is helper:
            self._lines.send(helper.visitor.line, GiveMessage(visit=visitor.line, ticket=b"", step=0))

    def is_late(self, visitor: Visitor) -> bool:
        """Whether it has joined for too long, and has not taken the state."""
        return not visitor.holds_state and self._now() > self._until_s.get(visitor.line, math.inf)

    def _helpers(self, now_s: float) -> list[Helper]:
        there = [helper for helper in self._epochs.helpers.values() if helper.is_there(now_s)]
        return [helper for helper in there if now_s >= self._rests_s.get(helper.address, now_s)]

    def _freest(self, helpers: Sequence[Helper], own: bool) -> int | None:
        taking = Counter(helper.visitor.line for helper in self._from.values())
        here = Uplink(sum(one.takes_state for one in self._visitors.values()), self._epochs.own.up_bytes_per_s)
        return freest(
            here if own else None,
            [Uplink(taking[helper.visitor.line], helper.link.up_bytes_per_s) for helper in helpers],
        )

    def _give(self, visitor: Visitor) -> None:
        visitor.takes_state = True
        step, state = self._kept.of_joiners()
        visitor.outgoing.put_state(pieces("state", step, 0, state))
