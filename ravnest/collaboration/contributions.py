"""What volunteers give to a step: taken piece by piece, looked into, and added where it counts.

In: messages of transfers on volunteers' lines, and what follows from parts that other machines have. Out: sums, and
events for the state machine of the step. What is refused costs its own volunteer.
"""

from collections.abc import Callable, Sequence

from ravnest.collaboration.backbone_state import BackboneState
from ravnest.collaboration.matching import Complete, Refused
from ravnest.collaboration.messages import GotMessage, PieceMessage, TensorMessage, TransferMessage
from ravnest.collaboration.sharing import FollowUp, Sharing
from ravnest.collaboration.spot_checks import SpotChecks
from ravnest.collaboration.step_events import ContributionCame, ContributionRefused, Event
from ravnest.collaboration.step_owner import StepOwner
from ravnest.collaboration.trainer import GRADIENTS
from ravnest.collaboration.transfers import Incoming
from ravnest.collaboration.visitor import Visitor
from ravnest.errors import InvalidInput
from ring_allreduce.transport import Lines, LineSaid


class Contributions:
    """All that comes to one backbone. It belongs to its thread."""

    def __init__(
        self,
        kept: BackboneState,
        owner: StepOwner,
        sharing: Sharing,
        checks: SpotChecks,
        lines: Lines,
        decide: Callable[[Event], None],
        tell: Callable[[str], None],
    ) -> None:
        """`decide`: carries out what follows from an event."""
        self._kept, self._owner, self._sharing, self._checks = kept, owner, sharing, checks
        self._lines, self._decide, self._tell = lines, decide, tell

    def take(self, visitor: Visitor, message: TransferMessage | TensorMessage | PieceMessage, event: LineSaid) -> None:
        """The next message of a volunteer's transfer."""
        whole: Incoming | None = None
        counts = False
        coming = message if isinstance(message, TransferMessage) else visitor.incoming
        epoch = 0 if coming is None else coming.epoch
        try:
            if isinstance(message, TransferMessage):
                visitor.incoming = None
                packing = self._sharing.packing_of(visitor, message)
                if packing is not None:
                    handed_on = self._sharing.is_relayed(visitor)
                    visitor.begin(message, packing, self._kept.most_samples, handed_on=handed_on)
                return
            whole = visitor.take(message, event.tensors)
            counts = whole is not None and self._owner.counts(visitor.peer, whole.step, whole.samples)
            if whole is not None and counts:
                self._look_into(visitor, whole)
        except InvalidInput as error:
            self._refused(visitor, str(error))
            if epoch:
                self.follow_up(self._sharing.own_came(visitor, epoch, None))
            return
        finally:
            if isinstance(message, PieceMessage):
                self._sharing.epochs.passed_down(event.tensors)
                self._lines.send(visitor.line, GotMessage(pieces=visitor.taken))
        if whole is None:
            return
        if epoch and not counts:  # nor does it once its other parts are there: nobody has looked into it
            self.follow_up(self._sharing.own_came(visitor, epoch, None))
            self._decide(ContributionCame(visitor.peer, whole.step, whole.samples))
        elif epoch:
            self.follow_up(self._sharing.own_came(visitor, epoch, whole))
        elif counts and self._sharing.is_relayed(visitor):
            self.follow_up(self._sharing.hand_on(visitor, whole))
        else:
            self.follow_up([Complete(visitor, whole, 0.0, (0, 0))])

    def follow_up(self, found: Sequence[FollowUp]) -> None:
        """Go on with what other machines' parts lead to."""
        for one in found:
            if isinstance(one, Refused):
                self._refused(one.visitor, one.reason)
            elif isinstance(one, Complete):
                self._count(one)
            else:
                self._decide(one)

    def _look_into(self, visitor: Visitor, whole: Incoming) -> None:
        """Raises InvalidInput for what is not asked, or was not computed."""
        assert visitor.person is not None
        if bool(whole.epoch) != (self._sharing.in_use and not self._sharing.is_relayed(visitor)):
            raise InvalidInput("it sends all of a contribution where a part is due, or a part where all is")
        gradient = whole.vectors[GRADIENTS]
        self._checks.require(visitor.person.key, visitor.order, whole.micro_batches, gradient, whole.samples)

    def _count(self, one: Complete) -> None:
        """A contribution is whole. One that is too late, whose step was committed without it, is told to the owner
        alone."""
        visitor, own = one.visitor, one.own
        counts = self._owner.counts(visitor.peer, own.step, own.samples)
        if counts and bool(own.epoch) != self._sharing.in_use:  # the owner would count what is in no sum
            self._sharing.drop(one.numbered)
            self._refused(visitor, "it came by another division of the gradient than its step is made by")
            return
        if counts:
            assert visitor.person is not None
            added = self._sharing.sum.add(
                own.vectors, own.samples, visitor.person.key, elsewhere=one.elsewhere, numbered=one.numbered
            )
            visitor.gave = True
            self._kept.people.gave(visitor.peer, visitor.person)
            self._kept.people.scaled(added)
            self._sharing.tell_counted()
        elif own.epoch:
            self._sharing.drop(one.numbered)
        self._decide(ContributionCame(visitor.peer, own.step, own.samples))

    def _refused(self, visitor: Visitor, reason: str) -> None:
        assert visitor.person is not None
        visitor.person.refused += 1
        self._tell(f"{visitor.name}: a contribution was refused: {reason}")
        self._decide(ContributionRefused(visitor.peer, reason))
