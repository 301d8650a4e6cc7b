"""The backbone of a collaboration: welcomes volunteers, adds up their gradients, and keeps the state.

In: a job of mode `collaborative`, and lines that volunteers open. Out: averaged steps, a folder with the state, the
curve and the people (backbone_store.py), and lines of text for whoever watches. One thread does all of it but the
sockets, which belong to `Lines`; when a step opens and ends is decided in step_owner.py. What a volunteer sends can end
its own line and no other.
"""

import time
from collections.abc import Callable, Mapping
from random import SystemRandom

from torch import Tensor

from ravnest.collaboration.admissions import Admissions
from ravnest.collaboration.backbone_state import BackboneResult, BackboneState, ledger_message
from ravnest.collaboration.contributions import Contributions
from ravnest.collaboration.epochs import Epochs
from ravnest.collaboration.invitation import listening_at
from ravnest.collaboration.keeping_up import KeepingUp
from ravnest.collaboration.kept_averages import TooLate
from ravnest.collaboration.messages import (
    COLLABORATION,
    AliveMessage,
    CollectMessage,
    EndMessage,
    FollowMessage,
    GotMessage,
    HelloMessage,
    JoinMessage,
    OpenMessage,
    PieceMessage,
    ProgressMessage,
    RefusedMessage,
    TensorMessage,
    TookMessage,
    TransferMessage,
)
from ravnest.collaboration.pump import Pump
from ravnest.collaboration.sharing import Sharing
from ravnest.collaboration.spot_checks import SpotChecks
from ravnest.collaboration.stand_by import is_served_further
from ravnest.collaboration.step_events import (
    CollectOn,
    CommitStep,
    Event,
    MakeMeans,
    OpenStep,
    PeerBecameReady,
    PeerLeft,
    ProgressCame,
    PutOut,
    TimePassed,
)
from ravnest.collaboration.step_owner import StepOwner
from ravnest.collaboration.step_sum import StepSum
from ravnest.collaboration.transfers import form_in_words
from ravnest.collaboration.visitor import Visitor
from ravnest.dht import new_identity
from ravnest.errors import InvalidInput
from ring_allreduce.transport import LineClosed, LineEvent, LineOpened, Lines, LineSaid, Message

SIGN_IN_S = 30.0
"""A line that has not proved who it is by then is ended."""

AGREE_S = 900.0
"""A volunteer may take so long to agree to the code and to make its model."""

MOST_VISITORS, MOST_UNSIGNED = 512, 64
"""Lines in all, and lines on which nobody has said yet who it is: beyond, the oldest of these gives way."""

LONGEST_WAIT_S = 0.5

LOOK_EVERY_S = 60.0
"""A backbone that serves looks so often whether another one does."""

ALIVE_S = 10.0
"""Volunteers hear something at least this often, unless the backbone writes its state for longer."""

HAND_OUT_S = 120.0
"""At the end volunteers may take so long, or the steps' own patience, to take the last averages."""

RETURN_S = 30.0
"""At the end a volunteer whose line has ended is waited for so long: it ends its micro-batch first, then pauses for
2 s (RETRY_S), and the address that served it last has 15 s to answer (DIAL_S)."""


class Backbone:
    """One backbone. `with` it, `serve` until the job's end; leaving the block ends all lines."""

    def __init__(
        self,
        kept: BackboneState,
        *,
        listen: str,
        addresses: tuple[str, ...] = (),
        others: tuple[str, ...] = (),
        bytes_per_s: float = 0.0,
        tell: Callable[[str], None] = lambda _: None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`listen`: HOST:PORT of this machine, port 0 for any free one. `addresses`: HOST:PORT where volunteers find
        it, if others than that. `others`: HOST:PORT of the other backbone machines. `bytes_per_s`: of this machine's
        link each way; 0: it is measured. Raises InvalidInput, TransportError."""
        self._tell, self._now = tell, now
        host, port = listening_at(listen)
        self._kept = kept
        self._trainer = kept.trainer
        self._verifier = new_identity()
        job = self._trainer.job
        self._owner = StepOwner(self._trainer.target_batch, self._trainer.step, delayed=job.delayed_step)
        self._visitors: dict[int, Visitor] = {}
        self._left_s: dict[str, float] = {}  # by key: when those who may come back went, for RETURN_S
        self._committed_s = self._looked_s = self._alive_s = self._now()
        self._visits, self._ending, self._steps_down = 0, False, False
        self._others = others
        secrets = kept.store.secrets
        self._lines = Lines(COLLABORATION, bytes.fromhex(secrets.token), listen=(host, port, secrets.keys()))
        packing = self._trainer.packing
        epochs = Epochs(job, packing, self._lines, self._joined, bytes_per_s=bytes_per_s, tell=tell, now=now)
        self._admissions = Admissions(kept, epochs, self._visitors, self._lines, tell, now)
        self._keeping_up = KeepingUp(packing, now)
        self._pump = Pump(self._visitors, self._lines, now, self._admissions.join, epochs.joined)
        self._sharing = Sharing(
            epochs, StepSum(packing), packing, self._lines, self._joined, now, delayed=job.delayed_step
        )
        checks = SpotChecks(job.spot_check_share, job.micro_batch, self._trainer.again, SystemRandom().random)
        self._given = Contributions(kept, self._owner, self._sharing, checks, self._lines, self._decide, tell)
        shown = f"[{host}]" if ":" in host else host
        self.invitation = kept.invitation((*(addresses or (f"{shown}:{self._lines.port}",)), *others))
        self.invitation_file = kept.store.save_invitation(self.invitation.line())

    def __enter__(self) -> "Backbone":
        return self

    def __exit__(self, *_: object) -> None:
        self._lines.close()

    @property
    def step(self) -> int:
        """Steps that have been made."""
        return self._trainer.step

    def serve(self, stop: Callable[[], bool] = lambda: False) -> BackboneResult:
        """Serve until the job's end, until `stop` says so, or until another backbone is further. The state is kept."""
        began_s: float | None = None  # of the first micro-batch, from which minutes count
        minutes = self._trainer.job.stop.minutes
        total = self._trainer.total_steps
        while not stop() and not self._steps_down and (total is None or self.step < total):
            if began_s is None and self._owner.peers:
                began_s = self._now()
            if minutes is not None and began_s is not None and self._now() - began_s >= 60 * minutes:
                total = self.step
                break
            due_s = self._owner.next_due_s(self._now())
            wait_s = LONGEST_WAIT_S if due_s is None else min(LONGEST_WAIT_S, max(0.0, due_s - self._now()))
            for event in self._lines.take(wait_s):
                self._on(event)
            self._decide(TimePassed())
            self._tend()
        ended = total is not None and self.step >= total
        return self._end(ended, stop)

    def _end(self, ended: bool, stop: Callable[[], bool]) -> BackboneResult:
        self._kept.save()
        weights = None
        if ended:
            weights = self._kept.save_weights()
            self._hand_out(stop)
            self._kept.evaluate(stop)
            self._kept.store.save_people(self._kept.people)
        if self._steps_down:
            for visitor in list(self._visitors.values()):
                self._put_out(visitor, "another backbone serves", may_return=True)
        self._kept.stop_evaluation()
        return BackboneResult(self.step, weights, self._trainer.weights_hash(), self._steps_down)

    def _hand_out(self, stop: Callable[[], bool]) -> None:
        """Let all take the last averages, and tell who has them that this is the end, until it says so, too. Volunteers
        whose line ends before are to find nobody gone when they come back; who stands by looks by itself."""
        self._ending = True  # no step is opened any more
        self._sharing.epochs.end()
        self._admissions.end()
        began_s, lasts_s = self._now(), max(HAND_OUT_S, self._owner.patience_s)
        ends_s, parts_s = began_s + lasts_s, began_s + lasts_s / 2
        while self._now() < ends_s and not stop():
            waits = self._sharing.kept.unsettled(self.step - 1, parts_s)
            self._say_alive()
            self._pump.pump()
            for visitor in self._joined():
                has_all = visitor.outgoing.settled and not visitor.takes_elsewhere
                if visitor.told_s is None and has_all and not waits:
                    self._lines.send(visitor.line, EndMessage(step=self.step, counted=visitor.counted))
                    visitor.told_s = self._now()
            here = any(visitor.is_awaited(self._now(), began_s) for visitor in self._visitors.values())
            if not here and not any(self._now() < left_s + RETURN_S for left_s in self._left_s.values()):
                break
            for event in self._lines.take(LONGEST_WAIT_S):
                self._on(event)
        for visitor in [one for one in self._visitors.values() if one.told_s is None]:  # else they look for it anew
            if visitor.person is not None and not visitor.joined:  # it agrees, or makes its model, and has not failed
                self._lines.send(visitor.line, EndMessage(step=self.step, counted=visitor.counted))
            self._put_out(visitor, "training has ended; it took not all in time", may_return=visitor.follows)

    # Lines.

    def _on(self, event: LineEvent) -> None:
        match event:
            case LineOpened(line=line):
                if len(self._visitors) >= MOST_VISITORS:
                    reason = "the backbone has as many volunteers as it can serve"
                    self._lines.send(line, RefusedMessage(reason=reason, may_return=True))
                    self._lines.hang_up(line, "no place")
                    return
                unsigned = [visitor for visitor in self._visitors.values() if not visitor.name]
                if len(unsigned) >= MOST_UNSIGNED:
                    self._put_out(unsigned[0], "too many have not said who they are", may_return=True)
                visitor = self._visitors[line] = Visitor(line, self._now())
                self._lines.send(line, self._kept.challenge(visitor.nonce))
            case LineClosed(line=line, reason=reason) if (lost := self._visitors.pop(line, None)) is not None:
                if lost.joined:
                    self._tell(f"the connection to {lost.name} is lost: {reason}")
                self._gone(lost, may_return=True)
            case LineSaid(line=line, message=message) if line in self._visitors:
                visitor = self._visitors[line]
                try:
                    self._hear(visitor, message, event)
                except InvalidInput as error:
                    self._put_out(visitor, str(error), may_return=isinstance(error, TooLate))

    def _hear(self, visitor: Visitor, message: Message, event: LineSaid) -> None:
        """Raises InvalidInput for what no volunteer of ours says at this point."""
        self._sharing.epochs.heard(visitor)
        if isinstance(message, HelloMessage) and visitor.person is None and not visitor.agreed:
            self._welcome(visitor, message)
        elif isinstance(message, FollowMessage) and visitor.person is None and not visitor.agreed:
            form = form_in_words(self._trainer.packing.sent)
            visitor.prove_backbone(message, self._kept.store.secrets.backbone_secret, self._kept.code, form)
            self._lines.trust(visitor.line)
            self._sharing.epochs.follows(visitor, message)
        elif isinstance(message, JoinMessage) and visitor.person is not None and not visitor.agreed:
            if message.form != form_in_words(self._trainer.packing.sent):
                raise InvalidInput("its model has other parameters than the backbone's: other versions of libraries?")
            visitor.agreed, visitor.order = True, message.order
        elif isinstance(message, EndMessage) and (visitor.told_s is not None or visitor.person is not None):
            if visitor.told_s is None and visitor.joined:
                self._tell(f"{visitor.name} has left")
            del self._visitors[visitor.line]
            self._lines.hang_up(visitor.line, "it has said that it leaves")
            self._gone(visitor, may_return=False)
        elif visitor.follows and isinstance(message, AliveMessage):
            pass  # that it has come is what it says
        elif not visitor.joined:
            raise InvalidInput(f"{type(message).__name__} out of turn")
        elif isinstance(message, ProgressMessage) and not visitor.follows:
            self._progress(visitor, message)
        elif isinstance(message, TookMessage) and not visitor.follows:
            self._admissions.took(visitor, message)
        elif isinstance(message, GotMessage):
            before = visitor.outgoing.taken
            visitor.outgoing.got(message.pieces)
            if visitor.caught_up:
                self._sharing.epochs.passed_up(message.pieces - before)
        elif isinstance(message, TransferMessage | TensorMessage | PieceMessage) and not visitor.follows:
            self._given.take(visitor, message, event)
        elif (found := self._sharing.hear(visitor, message, event)) is not None:
            self._given.follow_up(found)
        else:
            raise InvalidInput(f"{type(message).__name__} is nothing that a volunteer says")

    def _welcome(self, visitor: Visitor, hello: HelloMessage) -> None:
        key = visitor.prove(hello, self._kept.store.secrets.backbone_public, self._verifier)
        self._left_s.pop(key, None)
        visitor.person = self._kept.people.came(key, visitor.name)
        self._visits += 1
        self._lines.trust(visitor.line)
        for message in self._kept.welcome(self._visits):
            self._lines.send(visitor.line, message)

    def _progress(self, visitor: Visitor, message: ProgressMessage) -> None:
        if message.loss is not None:
            self._kept.heard(message.step, message.loss, message.loss_samples)
        if not self._sharing.epochs.counts_on(visitor):
            return
        self._decide(PeerBecameReady(visitor.peer, message.step))
        samples, every_s = min(message.samples, self._kept.most_samples), min(max(message.every_s, 0.1), 600.0)
        micro_batch = self._trainer.job.micro_batch
        self._decide(ProgressCame(visitor.peer, message.step, samples, message.samples_per_s, micro_batch, every_s))
        if message.samples_per_s and not visitor.rated:
            visitor.rated = True
            self._lines.send(visitor.line, AliveMessage(step=self.step, counted=visitor.counted))

    # Decisions.

    def _decide(self, event: Event) -> None:
        if self._ending:
            return
        committed: tuple[Mapping[str, int], dict[str, Tensor]] | None = None
        if isinstance(event, TimePassed):
            due_s = self._owner.next_due_s(self._now()) if self._owner.open else None
            self._given.follow_up(self._sharing.tend(due_s, self._owner.patience_s))
        self._owner.averages_take_s = self._pump.averages_take_s
        for instruction in self._owner.handle(event, self._now()):
            match instruction:
                case OpenStep(step=step, stops=stops, most_next=most_next):
                    epoch = self._sharing.opens(step)
                    self._owner.in_parts = bool(epoch)
                    for visitor in self._joined():
                        if (stop := stops.get(visitor.peer)) is not None:
                            most = most_next.get(visitor.peer)
                            by = 0 if self._sharing.is_relayed(visitor) else epoch
                            opened = OpenMessage(step=step, stop=stop, most_next=most, epoch=by)
                            self._lines.send(visitor.line, opened)
                case CollectOn(step=step, peer=peer):
                    for visitor in self._joined():
                        if peer in (None, visitor.peer):
                            self._lines.send(visitor.line, CollectMessage(step=step))
                case MakeMeans(step=step):
                    self._sharing.make_means(step)
                    self._pump.pump()
                case CommitStep():
                    committed = instruction.samples, self._hand_on(instruction)
                case PutOut(peer=peer, reason=reason):
                    for visitor in [one for one in self._joined() if one.peer == peer]:
                        self._put_out(visitor, reason)
        if committed is not None:
            # After the word to open the next step, which would wait for all pieces that a slow link takes first.
            self._pump.pump(joins=False)  # the state has not made the step yet
            self._kept.apply(*committed)
            ledger = ledger_message(*self._kept.ledger())
            for visitor in [one for one in self._joined() if one.follows]:
                self._lines.send(visitor.line, ledger)

    def _hand_on(self, committed: CommitStep) -> dict[str, Tensor]:
        """Queue the mean for everyone: it travels while it is applied here."""
        shared, now_s = self._sharing.in_use, self._now()
        took_s, self._committed_s = now_s - self._committed_s, now_s
        self._pump.committed(took_s)
        if shared:
            mean = self._sharing.committed(committed.step)
        else:
            said, mean = self._sharing.sum.finish(committed.step)
            for visitor in self._joined():
                visitor.outgoing.put(iter(said))
        self._kept.people.committed(committed.samples)
        useless = self._sharing.epochs.step_took(took_s, shared=shared)
        if useless:
            self._sharing.give_up(useless, "steps are not shorter with shares")
        return mean

    def _tend(self) -> None:
        now_s = self._now()
        for visitor in list(self._visitors.values()):
            patience_s = SIGN_IN_S if visitor.person is None else AGREE_S
            if not visitor.agreed and now_s > visitor.opened_s + patience_s:
                self._put_out(visitor, "it did not join in time", may_return=True)
            elif visitor.joined:
                more, late = 2 * self._sharing.epochs.relayed_to(visitor), self._admissions.is_late(visitor)
                if (found := self._keeping_up.look(visitor, self.step, more, state_is_late=late)) is not None:
                    self._put_out(visitor, found[0], may_return=found[1])
        self._kept.look_at_evaluation()
        self._say_alive()
        if self._others and now_s >= self._looked_s + LOOK_EVERY_S:
            self._looked_s = now_s
            self._steps_down = is_served_further(self._kept.standing, self.invitation, self._others, self._now)
        self._pump.pump()

    def _say_alive(self) -> None:
        now_s = self._now()
        if now_s < self._alive_s + ALIVE_S:
            return
        self._alive_s = now_s
        for visitor in self._visitors.values():
            if visitor.agreed:
                self._lines.send(visitor.line, AliveMessage(step=self.step, counted=visitor.counted))

    def _put_out(self, visitor: Visitor, reason: str, *, may_return: bool = False) -> None:
        if self._visitors.pop(visitor.line, None) is None:
            return
        if visitor.name:
            self._tell(f"{visitor.name} is put out: {reason}")
        self._lines.send(visitor.line, RefusedMessage(reason=reason[:400], may_return=may_return))
        self._lines.hang_up(visitor.line, reason)
        self._gone(visitor, may_return)

    def _gone(self, visitor: Visitor, may_return: bool) -> None:
        now_s = self._now()
        self._left_s = {key: left_s for key, left_s in self._left_s.items() if now_s < left_s + RETURN_S}
        if visitor.person is not None and visitor.joined and may_return:
            self._left_s[visitor.person.key] = now_s
        if visitor.person is not None:
            self._kept.people.left(visitor.person)
        self._admissions.left(visitor)
        self._keeping_up.left(visitor)
        self._given.follow_up(self._sharing.left(visitor))
        if visitor.joined:
            self._decide(PeerLeft(visitor.peer))

    def _joined(self) -> list[Visitor]:
        return [visitor for visitor in self._visitors.values() if visitor.joined]
