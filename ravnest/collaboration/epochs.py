"""Who adds up which range of the gradient: the epochs that the serving backbone plans, announces and gives up.

In: machines that stand by and listen, volunteers that reach them or do not, and what passes on this machine's link.
Out: an epoch that everyone has reached, or none; and messages that announce it. What is done with it in a step is
sharing.py's. A helper that was given up rests, each time twice as long.
"""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from ravnest.collaboration.link_rates import LinkRate
from ravnest.collaboration.messages import (
    MOST_HELPERS,
    AdmitMessage,
    FollowMessage,
    HelpMessage,
    ReachedMessage,
    SharesMessage,
    WithoutMessage,
)
from ravnest.collaboration.packing import Packing
from ravnest.collaboration.shares import Division
from ravnest.collaboration.sharing_plan import Link, Outcome, planned, relays_pay
from ravnest.collaboration.transfers import Incoming, Said
from ravnest.collaboration.visitor import Visitor
from ravnest.errors import InvalidInput
from ravnest.job.config import Job
from ring_allreduce.transport import Lines

REACH_S = 600.0
"""Volunteers have so long to reach all helpers: they hear of them when a micro-batch is made. Nobody waits for it."""

SILENT_S = 30.0
"""A helper that said nothing for so long is given up; it may write its state."""

AWAY_S = 1.0
"""Who serves reads at least this often, unless it writes its state for longer: what was said meanwhile waits."""

REST_S = 300.0
MOST_DOUBLED = 6
"""A helper that was given up rests for so long, and each time twice as long, at most 2 to this power of times."""

PLAN_S = 5.0
RELAYED = 1 << 40
"""Visits whose parts are handed on are numbered from here on: so nothing is taken for what the same volunteer sent to a
helper itself."""

TICKET_BYTES = 16


@dataclass(eq=False)
class Helper:
    """A machine that stands by and listens. `stated`: bytes per second of its link; 0: it is measured."""

    visitor: Visitor
    address: str
    stated: float
    heard_s: float
    measured: Link = field(default_factory=Link)
    incoming: Incoming | None = None
    """The mean that comes from it, and its messages so far."""
    said: list[Said] = field(default_factory=list)

    @property
    def link(self) -> Link:
        """What is known of its link."""
        return Link(self.stated, self.stated) if self.stated else self.measured

    def is_there(self, now_s: float) -> bool:
        """Whether it is as far as this machine, and was heard lately."""
        return self.visitor.caught_up and now_s < self.heard_s + SILENT_S


@dataclass(eq=False)
class Epoch:
    """Ranges, and who has them: part p is the helper's at place p - 1."""

    number: int
    division: Division
    helpers: list[Helper]
    announced_s: float
    told_s: dict[int, float] = field(default_factory=dict)
    """By visit: when a volunteer was told."""
    reached: set[int] = field(default_factory=set)
    relayed: set[int] = field(default_factory=set)
    """Visits that do not reach all helpers: this machine hands on to helpers what they are to add up."""
    usable: bool = False
    """Everyone has reached all helpers; who joins later need not have."""

    @property
    def taking_part(self) -> set[int]:
        """The visits that can give to steps which are made by it."""
        return self.reached | self.relayed

    def visit_of(self, line: int) -> int:
        """The number under which helpers know a visit."""
        return line + RELAYED if line in self.relayed else line

    def cancel_relayed(self) -> None:
        """Hand nothing on any more: to be called before a word that it is over, behind which parts are out of turn."""
        visits = {self.visit_of(line) for line in self.relayed}
        for helper in self.helpers:
            helper.visitor.outgoing.cancel_of(visits)

    def part_of(self, helper: Helper | None) -> int:
        """Its part; 0 where it has none."""
        return 1 + self.helpers.index(helper) if helper in self.helpers else 0


class Epochs:
    """All helpers, and the epoch. It belongs to the backbone's thread."""

    def __init__(
        self,
        job: Job,
        packing: Packing,
        lines: Lines,
        visitors: Callable[[], Sequence[Visitor]],
        *,
        bytes_per_s: float,
        tell: Callable[[str], None],
        now: Callable[[], float],
    ) -> None:
        """`visitors`: all that have joined. `bytes_per_s`: of this machine's link each way; 0: it is measured."""
        self._packing, self._lines, self._visitors = packing, lines, visitors
        self._stated, self._tell, self._now = bytes_per_s, tell, now
        keys = {"gradient_rank": job.gradient_rank, "spot_check_share": job.spot_check_share}
        self._whole_only = [key for key, value in keys.items() if value]
        self.helpers: dict[int, Helper] = {}
        """By line: all that listen, whether they may add up shares or only hand over the state."""
        self.current: Epoch | None = None
        """The epoch that was announced last, unless it was given up."""
        self._failures: dict[str, tuple[int, float]] = {}  # by address: how often, and until when it rests
        self._count = 0
        self._up, self._down, self._outcome = LinkRate(), LinkRate(), Outcome()
        self._plan_s = 0.0
        self._looked_s = now()

    @property
    def own(self) -> Link:
        """What is known of this machine's link."""
        return Link(self._stated, self._stated) if self._stated else Link(self._up.bytes_per_s, self._down.bytes_per_s)

    def counts_on(self, visitor: Visitor) -> bool:
        """Whether a volunteer can take part now: who joined reaches the helpers first."""
        return self.current is None or not self.current.usable or visitor.line in self.current.taking_part

    def follows(self, visitor: Visitor, message: FollowMessage) -> None:
        """Another backbone machine stands by."""
        if message.listens and self._whole_only:
            self._tell(
                f"{message.listens} adds up no share: {self._whole_only[0]} needs whole gradients at one machine"
            )
        if message.listens:
            self.helpers[visitor.line] = Helper(visitor, message.listens, message.bytes_per_s, self._now())

    def joined(self, visitor: Visitor) -> None:
        """A volunteer or another backbone machine has the state and all averages since."""
        if self.current is not None and not visitor.follows:
            self._invite(visitor, self.current)

    def left(self, visitor: Visitor) -> Helper | None:
        """A line has ended: the helper whose part is nobody's now."""
        helper, epoch = self.helpers.pop(visitor.line, None), self.current
        if epoch is None or helper is not None:
            return helper if epoch is not None and helper in epoch.helpers else None
        visit = epoch.visit_of(visitor.line)
        for one in epoch.helpers:
            one.visitor.outgoing.cancel_of({visit})  # nobody waits for it any more
            self._lines.send(one.visitor.line, AdmitMessage(visit=visit, ticket=b""))
        epoch.told_s.pop(visitor.line, None)
        epoch.reached.discard(visitor.line)
        epoch.relayed.discard(visitor.line)
        return None

    def reached(self, visitor: Visitor, message: ReachedMessage) -> Helper | None:
        """A volunteer reaches all, or not the helper that is returned. Raises InvalidInput."""
        epoch = self.current
        if epoch is None or message.epoch != epoch.number or visitor.line not in epoch.told_s:
            return None
        if message.lost >= epoch.division.parts:
            raise InvalidInput(f"it does not reach part {message.lost} of {epoch.division.parts}")
        if message.lost:
            return epoch.helpers[message.lost - 1]
        epoch.reached.add(visitor.line)
        return None

    def relays(self, visitor: Visitor, step: int) -> bool:
        """Have a volunteer give whole contributions, of which this machine hands on the helpers' parts; False where
        shares are of no use then. What it was asked for before counts up to `step`, and is sent again from there on."""
        epoch = self.current
        assert epoch is not None
        count, volunteers = len(epoch.relayed) + 1, [one for one in self._visitors() if not one.follows]
        links = [helper.link for helper in epoch.helpers]
        if not relays_pay(self.own, links, epoch.division, len(volunteers), count):
            return False
        for helper in epoch.helpers:
            self._lines.send(helper.visitor.line, AdmitMessage(visit=visitor.line, ticket=b""))
        epoch.told_s.pop(visitor.line, None)
        epoch.reached.discard(visitor.line)
        epoch.relayed.add(visitor.line)
        self._lines.send(visitor.line, WithoutMessage(epoch=epoch.number, step=step))
        self._tell(f"{visitor.name} does not reach all that add up shares: this machine hands its parts on")
        return True

    def relayed_to(self, visitor: Visitor) -> int:
        """For how many volunteers something may wait to be handed on to this machine."""
        epoch = self.current
        return len(epoch.relayed) if epoch is not None and epoch.part_of(self.helpers.get(visitor.line)) else 0

    def unreached(self) -> list[Visitor]:
        """Volunteers that have not said for REACH_S that they reach all helpers, or do not."""
        epoch, now_s = self.current, self._now()
        if epoch is None:
            return []
        late = {line for line, at_s in epoch.told_s.items() if line not in epoch.reached and now_s > at_s + REACH_S}
        return [visitor for visitor in self._visitors() if visitor.line in late]

    def heard(self, visitor: Visitor) -> None:
        """Something has come from this line."""
        if (helper := self.helpers.get(visitor.line)) is not None:
            helper.heard_s = self._now()

    def passed_up(self, pieces: int) -> None:
        """So many pieces of averages were taken by others."""
        self._up.passed(pieces * self._packing.sent[0].piece_bytes, self._now())

    def passed_down(self, tensors: Sequence[Tensor]) -> None:
        """A piece of a contribution has come."""
        self._down.passed(sum(one.numel() * one.element_size() for one in tensors), self._now())

    def step_took(self, seconds: float, *, shared: bool) -> list[Helper]:
        """A step was committed. Between two steps ranges may change; who is returned is of no use."""
        self._up.step_ended()
        self._down.step_ended()
        self._outcome.step_took(seconds, shared=shared)
        epoch = self.current
        if epoch is not None and epoch.usable:
            if not self._outcome.gains:
                return epoch.helpers
            self._plan(epoch)
        return []

    def was_away(self) -> float:
        """For how many seconds nothing was read since this was last called: they are nobody's silence."""
        now_s = self._now()
        away_s, self._looked_s = max(0.0, now_s - self._looked_s - AWAY_S), now_s
        for helper in self.helpers.values():
            helper.heard_s = min(now_s, helper.heard_s + away_s)
        return away_s

    def trouble(self) -> tuple[list[Helper], str] | None:
        """Begin or go on with an epoch; who has to be given up now, and why."""
        epoch, now_s = self.current, self._now()
        if epoch is None:
            if self.helpers and not self._whole_only and now_s >= self._plan_s:
                self._plan_s = now_s + PLAN_S
                self._plan(None)
            return None
        silent = [helper for helper in epoch.helpers if now_s > helper.heard_s + SILENT_S]
        if silent:
            return silent, f"it said nothing for {SILENT_S:.0f} s"
        if epoch.told_s.keys() <= epoch.reached and epoch.taking_part:
            epoch.usable = True
        return None

    def give_up(self, helpers: Sequence[Helper], why: str, step: int) -> None:
        """End the epoch. `step`: from which on what was sent by it has to come again."""
        epoch, self.current = self.current, None
        for helper in helpers:
            count = self._failures.get(helper.address, (0, 0.0))[0]
            rest_s = REST_S * 2 ** min(count, MOST_DOUBLED)
            self._failures[helper.address] = count + 1, self._now() + rest_s
            self._tell(f"{helper.address} adds up no share for {rest_s:.0f} s: {why}")
        if epoch is not None:
            epoch.cancel_relayed()
            ended = WithoutMessage(epoch=epoch.number, step=step)
            for line in [*epoch.told_s, *epoch.relayed, *(helper.visitor.line for helper in epoch.helpers)]:
                self._lines.send(line, ended)

    def end(self) -> None:
        """Training has ended: nothing is shared any more, and the last average waits for no part of another step."""
        if self.current is not None:
            self.current.cancel_relayed()
        self.current = None

    def _plan(self, present: Epoch | None) -> None:
        now_s = self._now()
        able = [
            helper
            for helper in self.helpers.values()
            if helper.is_there(now_s) and now_s >= self._failures.get(helper.address, (0, 0.0))[1]
        ][:MOST_HELPERS]
        volunteers = [one for one in self._visitors() if not one.follows and one.caught_up]
        before = None
        if present is not None:
            before = present.division, [1 + able.index(helper) for helper in present.helpers if helper in able]
            if len(before[1]) < len(present.helpers):
                return
        found = planned(self._packing, self.own, [helper.link for helper in able], len(volunteers), before)
        if found is None:
            return
        if present is not None:
            present.cancel_relayed()
        division, machines = found
        self._count += 1
        epoch = self.current = Epoch(self._count, division, [able[machine - 1] for machine in machines], now_s)
        self._outcome.epoch_begins()
        for part, helper in enumerate(epoch.helpers, 1):
            asked = HelpMessage(epoch=epoch.number, part=part, bounds=division.bounds)
            self._lines.send(helper.visitor.line, asked)
        for visitor in volunteers:
            self._invite(visitor, epoch)
        parts = [division.span(part) for part in range(division.parts)]
        shares = ", ".join(f"{(span.stop - span.start) / division.bounds[-1]:.0%}" for span in parts)
        named = " and ".join(helper.address for helper in epoch.helpers)
        self._tell(f"{named} may add up shares of the gradient, beside this machine: {shares}")

    def _invite(self, visitor: Visitor, epoch: Epoch) -> None:
        ticket = secrets.token_bytes(TICKET_BYTES)
        epoch.told_s[visitor.line] = self._now()
        for helper in epoch.helpers:
            self._lines.send(helper.visitor.line, AdmitMessage(visit=visitor.line, ticket=ticket))
        told = SharesMessage(
            epoch=epoch.number,
            bounds=epoch.division.bounds,
            addresses=tuple(helper.address for helper in epoch.helpers),
            ticket=ticket,
        )
        self._lines.send(visitor.line, told)
