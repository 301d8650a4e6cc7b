"""Steps whose gradient several machines add up, each a range: the side of the backbone that serves.

In: parts of contributions, and what helpers say of theirs. Out: contributions that are whole everywhere, means of all
parts, and messages on lines. When steps open and end is decided in step_owner.py, who has which range in epochs.py; the
protocol is decision 205. The epoch is given up when any of its machines is lost, silent or late, or a volunteer cannot
reach one: then the step is begun again without shares.
"""

import copy
from collections.abc import Callable, Sequence
from itertools import chain

from torch import Tensor

from ravnest.collaboration.epochs import Epoch, Epochs, Helper
from ravnest.collaboration.kept_averages import Averaging, KeptAverages
from ravnest.collaboration.matching import Complete, Matching, Refused
from ravnest.collaboration.messages import (
    AliveMessage,
    CountMessage,
    GotMessage,
    MadeMessage,
    MakeMeanMessage,
    MissingMessage,
    PartMessage,
    PieceMessage,
    RatesMessage,
    ReachedMessage,
    RelayMessage,
    TensorMessage,
    TransferMessage,
)
from ravnest.collaboration.packing import Packing
from ravnest.collaboration.shares import in_part
from ravnest.collaboration.sharing_plan import Link
from ravnest.collaboration.step_events import BegunAgain, Event, MeansMade
from ravnest.collaboration.step_sum import StepSum
from ravnest.collaboration.transfers import Incoming
from ravnest.collaboration.visitor import Visitor
from ravnest.errors import InvalidInput
from ring_allreduce.transport import Lines, LineSaid, Message

LEAST_PATIENCE_S = 10.0
"""A helper's mean may take so long without a piece of it, or a step's patience."""

MOST_HANDED_ON = 8
"""So many whole contributions of a volunteer are kept until their step is made; others are lost with its epoch."""

FollowUp = Complete | Refused | Event


class Sharing:
    """The parts of the present step. It belongs to the backbone's thread."""

    def __init__(
        self,
        epochs: Epochs,
        whole: StepSum,
        packing: Packing,
        lines: Lines,
        visitors: Callable[[], Sequence[Visitor]],
        now: Callable[[], float],
        *,
        delayed: bool = False,
    ) -> None:
        """`whole`: where contributions are added that are not shared. `visitors`: all that have joined. `delayed`: what
        others are to send for the next step comes while they take the average of this one, so its word goes first."""
        self.epochs = epochs
        self._whole, self._packing, self._lines = whole, packing, lines
        self._visitors, self._now, self._delayed = visitors, now, delayed
        self._step = -1
        self._part: StepSum | None = None  # of the present step, where it is made in parts
        self._epoch: Epoch | None = None  # by which it is made
        self._matching = Matching(epochs, self.drop)
        self._handed_on: list[Complete] = []  # whole contributions to the present step
        self._averaging: Averaging | None = None
        self.kept = KeptAverages(lambda: epochs.helpers, visitors, now)
        """The last averages."""

    @property
    def in_use(self) -> bool:
        """Whether the present step is made in parts."""
        return self._part is not None

    @property
    def sum(self) -> StepSum:
        """Where contributions are added."""
        return self._part or self._whole

    def opens(self, step: int) -> int:
        """A step opens, maybe again: the epoch by which it is made; 0: without shares."""
        if step != self._step:
            self._handed_on = []
            self._step, epoch = step, self.epochs.current
            if epoch is not None and epoch.usable:
                self._part, self._epoch = self._whole.divided(epoch.division), epoch
        return self._epoch.number if self._epoch is not None else 0

    def packing_of(self, visitor: Visitor, message: TransferMessage) -> Packing | None:
        """How this contribution travels; None for one of an epoch that is over, for all or for this volunteer."""
        if not message.epoch:
            return self._packing
        epoch = self.epochs.current
        if epoch is None or message.epoch != epoch.number or message.part or visitor.line in epoch.relayed:
            return None
        return epoch.division.packing_of(0)

    def left(self, visitor: Visitor) -> list[FollowUp]:
        """A line has ended."""
        self._matching.left(visitor.line)
        lost = self.epochs.left(visitor)
        return [] if lost is None else self.give_up([lost], "its line has ended")

    def hear(self, visitor: Visitor, message: Message, event: LineSaid) -> list[FollowUp] | None:
        """What a visitor says of shares; None for anything else. Raises InvalidInput."""
        if visitor.follows:
            helper = self.epochs.helpers.get(visitor.line)
            return None if helper is None else self._hear_helper(helper, message, event)
        if isinstance(message, ReachedMessage):
            lost = self.epochs.reached(visitor, message)
            if lost is None or self._relays(visitor):
                return []
            return self.give_up([lost], f"{visitor.name} does not reach it")
        if isinstance(message, MissingMessage):
            self.kept.lacks(visitor, message)
            return []
        return None

    def tend(self, due_s: float | None, patience_s: float) -> list[FollowUp]:
        """What has to be given up now. `due_s`: when what was sent for the open step has to be there."""
        away_s, now_s = self.epochs.was_away(), self._now()
        found = self.epochs.trouble()
        if found is not None:
            return self.give_up(*found)
        for visitor in self.epochs.unreached():
            if not self._relays(visitor):
                return self.give_up(self._helpers(), "a volunteer does not say that it reaches all helpers")
        epoch, made = self._epoch, self._averaging
        if epoch is None:
            return []
        late: list[Helper] = []
        if made is not None:
            made.heard_s = [min(now_s, at_s + away_s) for at_s in made.heard_s]
            most_s = max(LEAST_PATIENCE_S, patience_s)
            waits = [part for part in range(1, epoch.division.parts) if part not in made.means]
            late = [epoch.helpers[part - 1] for part in waits if now_s > made.heard_s[part] + most_s]
        elif due_s is not None and now_s >= due_s:
            late = self._matching.late(epoch, self._step)
        return self.give_up(late, "its part of a step is late") if late else []

    def give_up(self, helpers: Sequence[Helper], why: str) -> list[FollowUp]:
        """End the epoch, and begin the step again where it was made by it."""
        made, part = self._averaging, self._part
        self.kept.epoch_ends()
        self.epochs.give_up(helpers, why, self._step + (part is None))
        if part is None:
            return []
        if made is not None:
            part.restore_lost(made.lost_before)
            for visitor, transfer in made.sent:
                visitor.outgoing.cancel(transfer)
        part.reset()
        self._whole.take_back(part)
        self._part = self._epoch = self._averaging = None
        self._matching.clear()
        whole, self._handed_on = self._handed_on, []  # they were not sent by ranges, and do not come again
        for visitor in self._visitors():
            if visitor.incoming is not None and visitor.incoming.epoch:
                visitor.incoming = None
        return [BegunAgain(), *whole]

    # Contributions.

    def own_came(self, visitor: Visitor, epoch: int, own: Incoming | None) -> list[FollowUp]:
        """Part 0 of a contribution by this epoch has come whole, or was refused (None). Raises TooLate."""
        return [*self._matching.own_came(visitor, epoch, own)]

    def is_relayed(self, visitor: Visitor) -> bool:
        """Whether the present step is made in parts, and those of this volunteer are handed on by this machine."""
        return self._epoch is not None and visitor.line in self._epoch.relayed

    def hand_on(self, visitor: Visitor, whole: Incoming) -> list[FollowUp]:
        """A contribution of such a volunteer has come whole."""
        epoch, said = self._epoch, visitor.said
        visitor.said = None
        if epoch is None or said is None:
            return []
        parts = epoch.division.split(said, epoch.number)
        visit = epoch.visit_of(visitor.line)
        relayed = RelayMessage(epoch=epoch.number, visit=visit)
        for helper, part in zip(epoch.helpers, parts[1:], strict=True):
            helper.visitor.outgoing.put(iter([(relayed, ()), *part]), visit=visit)
        if sum(one.visitor is visitor for one in self._handed_on) < MOST_HANDED_ON:
            self._handed_on.append(Complete(visitor, whole, 0.0, (0, 0)))
        own = copy.copy(whole)
        own.epoch, own.vectors = epoch.number, epoch.division.vectors_of(0, whole.vectors)
        return self.own_came(visitor, epoch.number, own)

    def _relays(self, visitor: Visitor) -> bool:
        """Hand a volunteer's parts on from now on. What it has sent by ranges and is not whole comes again."""
        epoch, made, line = self.epochs.current, self._averaging, visitor.line
        gave = self._part is None or self._matching.gave(line, self._step)
        if epoch is None or not self.epochs.relays(visitor, self._step + gave):
            return False
        self._matching.left(line)
        if visitor.incoming is not None and visitor.incoming.epoch:
            visitor.incoming = None
        if made is not None and line in made.visits:  # it is sent the whole average
            made.visits.remove(line)
            for one, transfer in made.sent:
                if one is visitor:
                    visitor.outgoing.cancel(transfer)
        return True

    def _helpers(self) -> list[Helper]:
        return [] if self.epochs.current is None else self.epochs.current.helpers

    def tell_counted(self) -> None:
        """Helpers add what was added here, in the same order."""
        for visit, number, scale in self._part.take_scales() if self._part is not None else ():
            self._count(visit, number, min(1.0, scale))

    def drop(self, numbered: tuple[int, int]) -> None:
        """A contribution does not count."""
        self._count(*numbered, None)

    def _count(self, visit: int, number: int, scale: float | None) -> None:
        if (epoch := self.epochs.current) is not None:
            counted = CountMessage(epoch=epoch.number, visit=visit, number=number, scale=scale)
            for helper in epoch.helpers:
                self._lines.send(helper.visitor.line, counted)

    # Averages.

    def make_means(self, step: int) -> None:
        """The sums are complete: all machines make the means of their parts."""
        epoch, part = self._epoch, self._part
        assert epoch is not None
        assert part is not None
        part.add_held()
        self.tell_counted()
        joined = {visitor.line: visitor for visitor in self._visitors()}
        visits = sorted(epoch.reached & joined.keys())
        made = self._averaging = Averaging(step, epoch, visits, [self._now()] * epoch.division.parts)
        asked = MakeMeanMessage(epoch=epoch.number, step=step, visits=tuple(visits))
        for helper in epoch.helpers:
            self._lines.send(helper.visitor.line, asked)
        made.lost_before = part.lost_so_far()
        said, made.means[0] = part.finish(step)
        made.said[0] = in_part(said, epoch.number, 0)
        for visit in () if self._delayed else visits:
            transfer = iter(made.said[0])
            joined[visit].outgoing.put(transfer)
            made.sent.append((joined[visit], transfer))

    def committed(self, step: int) -> dict[str, Tensor]:
        """All parts are there: who takes parts is told that they are, all others are sent them. Returns the mean."""
        made, part = self._averaging, self._part
        assert made is not None
        assert part is not None
        division = made.epoch.division
        said = division.joined([made.said[at] for at in range(division.parts)])
        mean = division.whole([made.means[at] for at in range(division.parts)])
        for visitor in self._visitors():
            own = made.epoch.part_of(self.epochs.helpers.get(visitor.line))
            takes_parts = visitor.line in made.visits
            if own or takes_parts:  # before any word that the epoch is over
                self._lines.send(visitor.line, MadeMessage(step=step))
            if own:
                others = [made.said[other] for other in range(division.parts) if other != own]
                visitor.outgoing.put(chain.from_iterable(others))
            elif not takes_parts:
                visitor.outgoing.put(iter(said))
            elif self._delayed:
                visitor.outgoing.put(iter(made.said[0]))
        self._whole.take_back(part)
        self._whole.begin_from(mean)
        self.kept.keep(made)
        self._part = self._epoch = self._averaging = None
        self._handed_on = []
        return mean

    def _hear_helper(self, helper: Helper, message: Message, event: LineSaid) -> list[FollowUp] | None:
        made = self._averaging
        match message:
            case AliveMessage():
                return []
            case RatesMessage():
                helper.measured = Link(message.up_bytes_per_s, message.down_bytes_per_s)
                self.kept.taken_of(helper, message.step)
                return []
            case PartMessage():
                visitors = {one.line: one for one in self._visitors()}
                return [*self._matching.part_came(helper, message, visitors)]
            case TransferMessage():
                helper.incoming, helper.said = None, []
                part = 0 if made is None else made.epoch.part_of(helper)
                if made is None or not part or message.epoch != made.epoch.number:
                    return []
                if message.what != "average" or message.step != made.step:
                    raise InvalidInput(f"a helper sends a {message.what} of step {message.step}")
                helper.incoming = made.epoch.division.packing_of(part).incoming(message)
                helper.said = [(message, ())]
                return []
            case TensorMessage() | PieceMessage():
                return self._take(helper, message, event)
        return None

    def _take(self, helper: Helper, message: TensorMessage | PieceMessage, event: LineSaid) -> list[FollowUp]:
        if isinstance(message, PieceMessage):
            helper.visitor.taken += 1
            self._lines.send(helper.visitor.line, GotMessage(pieces=helper.visitor.taken))
        incoming, made = helper.incoming, self._averaging
        if incoming is None or made is None:
            return []
        helper.said.append((message, event.tensors))
        if isinstance(message, TensorMessage):
            incoming.take_tensor(message)
        else:
            incoming.take_piece(message, event.tensors)
        part = made.epoch.part_of(helper)
        made.heard_s[part] = self._now()
        if not incoming.whole:
            return []
        made.said[part], made.means[part] = helper.said, incoming.vectors
        helper.incoming, helper.said = None, []
        return [MeansMade()] if len(made.means) == made.epoch.division.parts else []
