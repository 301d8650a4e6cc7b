"""One line of a volunteer to a backbone, from its first word to its end.

In: the line, and who the volunteer is. Out: samples that the backbone counts, and averages that are applied. The thread
that computes also reads what has come, between two micro-batches; peer_steps.py decides what follows. Where steps are
delayed another thread computes, and vectors travel meanwhile; what has to be decided waits for the end of the
micro-batch, so only one of the two threads touches the model. A backbone that is silent for too long is left. A
micro-batch whose loss or gradient is not finite counts as not made.
"""

import time
from collections.abc import Callable

from torch import Tensor

from ravnest.collaboration.beside import Beside, BesideInThread
from ravnest.collaboration.helper_lines import HelperLines
from ravnest.collaboration.messages import (
    MOST_SPANS,
    AliveMessage,
    CollectMessage,
    EndMessage,
    GotMessage,
    MadeMessage,
    OpenMessage,
    PieceMessage,
    ProgressMessage,
    RefusedMessage,
    SharesMessage,
    TakeMessage,
    TensorMessage,
    TookMessage,
    TransferMessage,
    WithoutMessage,
)
from ravnest.collaboration.packing import Feedback
from ravnest.collaboration.peer_steps import (
    ApplyAverage,
    AverageCame,
    CollectingWentOn,
    CountMicroBatch,
    ForgetSum,
    MicroBatchMade,
    PeerEvent,
    PeerSteps,
    ReportProgress,
    SendContribution,
    StateCame,
    StepOpened,
    TrainingEnded,
)
from ravnest.collaboration.progress import REPORT_S, Report
from ravnest.collaboration.sign_in import IDLE_S, Member, Refused, TrainingOver, sign_in
from ravnest.collaboration.spot_checks import spans_of
from ravnest.collaboration.taking import Taking
from ravnest.collaboration.trainer import NotFinite, Trainer
from ravnest.collaboration.transfers import Incoming, Outgoing
from ravnest.errors import InvalidInput, RunFailed
from ring_allreduce.transport import LineClosed, LineEvent, Lines, LineSaid, Message

SMOOTHED = 0.3
"""How much the last micro-batch counts in the rate that is reported. The first one, in which libraries and data warm
up, counts until the second one is made."""

MOST_NOT_FINITE = 20
"""So many micro-batches in a row that are not finite are no accident: training has diverged."""


MOST_HELD = 2
"""So many averages are held while a micro-batch is computed. Pieces of others are not taken before its end, so a
machine that makes one micro-batch in the time of many steps is sent no more than it has room for."""

VECTORS = (TransferMessage, TensorMessage, PieceMessage, GotMessage)
"""Messages that only carry vectors."""


class Diverged(RunFailed):
    """What this volunteer computes is not finite, again and again: another visit would change nothing."""


class Visit:
    """One visit. `run` is all there is to do with it."""

    def __init__(
        self,
        member: Member,
        lines: Lines,
        line: int,
        now: Callable[[], float] = time.monotonic,
        beside: Callable[[], Beside] = BesideInThread,
    ) -> None:
        """`beside`: makes what computes beside sending, where steps are delayed."""
        self._member, self._lines, self._line, self._now = member, lines, line, now
        self._make_beside = beside
        self._beside: Beside | None = None
        self._heard_s = now()
        self._trainer: Trainer
        self._steps = PeerSteps()
        self._outgoing = Outgoing()
        self._incoming: Incoming | None = None
        self._feedback: Feedback
        self._helpers: HelperLines
        self._taking: Taking
        self._means: dict[int, dict[str, Tensor]] = {}  # by step: averages that have come and are not applied
        self._due = 0  # the step whose average comes next
        self._made = 0  # so many steps were made, as far as is known
        self._taken = 0
        self._ended = self._closed = False
        self._reported: Report | None = None
        self._asks = True  # its first rate has not been answered yet
        self._seconds = 0.0  # of one micro-batch with all that is done beside it, smoothed
        self._timed = 0  # so many micro-batches
        self._made_s: float | None = None
        self._micro_batch = 1
        self._losses: list[tuple[float, int]] = []
        self._counted: list[int] = []  # the numbers of the micro-batches in the sum
        self._computing = False  # another thread has the model
        self._waiting: list[LineEvent | AverageCame] = []

    def run(self, stop: Callable[[], bool]) -> bool:
        """Work until the end of the collaboration (True), or of the line (False).

        Raises InvalidInput, Refused, Diverged: another visit would change nothing; RunFailed, or another RavnestError.
        """
        self._trainer, waiting = sign_in(self._member, self._lines, self._line, self._now, stop)
        self._waiting = [*waiting]
        self._micro_batch = self._trainer.job.micro_batch
        packing, member = self._trainer.packing, self._member
        self._feedback = Feedback(packing)
        here = self._lines, self._line, member.keys, member.tell, self._now
        self._helpers = HelperLines(packing, *here)
        self._taking = Taking(self._trainer.state_forms, packing.summed[0].elements, *here)
        self._heard_s = self._now()  # agreeing to the code takes as long as it takes
        self._member.given.visits += 1
        if not self._trainer.job.delayed_step:
            return self._work(stop)
        self._beside, self._steps = self._make_beside(), PeerSteps(delayed=True)
        try:
            return self._work(stop)
        finally:
            self._beside.close()

    def _work(self, stop: Callable[[], bool]) -> bool:
        while not stop():
            full = self._steps.computes and self._steps.samples >= self._trainer.target_batch
            told = self._reported
            untold = told is None or told.samples != self._steps.samples or self._now() >= told.at_s + REPORT_S
            if full and untold and self._steps.step is not None:  # again: who reaches no helper yet is not counted on
                self._report(self._steps.step, self._steps.samples, due=True)
            self._hear(IDLE_S if full or not self._computes else 0.0)
            self._pump()
            if self._ended:
                self._member.given.weights = self._trainer.weights_hash()
                return True
            if self._closed:
                return False
            self._member.require_heard(self._heard_s, self._now())
            # More than a whole batch is never one volunteer's: where steps are short, the word to stop comes late.
            if self._computes and self._steps.samples < self._trainer.target_batch:
                self._compute()
            else:
                self._made_s = None  # what follows is waiting
        self._lines.send(self._line, EndMessage(step=self._due))  # so that it is not taken for lost
        return True

    @property
    def _computes(self) -> bool:
        """Whether there is a micro-batch to be made that can count: a step that was made is over, and so is one whose
        average comes in."""
        coming = self._incoming is not None and self._incoming.what == "average" and self._beside is None
        return self._steps.computes and not coming and self._made <= (self._steps.step or 0)

    # Working.

    def _hear(self, wait_s: float) -> None:
        events: list[LineEvent | AverageCame] = self._waiting or [*self._lines.take(wait_s)]
        self._waiting = []
        for event in events:
            if isinstance(event, AverageCame):
                self._handle(event)
                continue
            if event.line != self._line:
                self._hear_helper(event)
                continue
            self._heard_s = self._now()
            if isinstance(event, LineClosed):
                self._closed = True
            elif isinstance(event, LineSaid):
                self._take_checked(event)

    def _tend(self, wait_s: float) -> None:
        """While a micro-batch is computed: vectors travel, and all else waits, in its order."""
        self._computing = True
        for event in self._lines.take(wait_s):
            if event.line == self._line:
                self._heard_s = self._now()
            said = event.message if isinstance(event, LineSaid) else None
            has_room = len(self._means) < MOST_HELD  # once there is none, all that follows waits in its order
            now = VECTORS if has_room else (GotMessage,)
            if isinstance(event, LineSaid) and event.line == self._line and isinstance(said, now):
                self._take_checked(event)
            elif event.line != self._line and isinstance(said, (*now, AliveMessage)):
                self._hear_helper(event)
            else:
                self._waiting.append(event)
        self._computing = False
        self._pump()

    def _take_checked(self, event: LineSaid, *, again: bool = False) -> None:
        if isinstance(event.message, PieceMessage) and not again:
            self._taken += 1
            self._lines.send(self._line, GotMessage(pieces=self._taken))
        try:
            if not self._taking.holds(event):
                self._take(event.message, event)
        except InvalidInput as error:
            raise RunFailed(f"the backbone sent what cannot be: {error}") from error

    def _hear_helper(self, event: LineEvent) -> None:
        if event.line != self._taking.line:
            self._helpers.hear(event, self._due)
            self._take_averages()
        elif (state := self._taking.hear(event)) is not None:
            self._lines.send(self._line, TookMessage(step=state.step))
            self._load(state)
            for held in self._taking.ends():
                self._take_checked(held, again=True)

    def _take(self, message: Message, event: LineSaid) -> None:
        match message:
            case RefusedMessage():
                failure = RunFailed if message.may_return else Refused
                raise failure(f"the backbone has ended this visit: {message.reason}")
            case EndMessage() if self._steps.step is None:
                raise TrainingOver("training has ended before this volunteer had the state")
            case EndMessage():
                self._member.given.was_counted(message.counted, message.step)
                if message.step != self._due:
                    raise RunFailed(f"training has ended at step {message.step}, and step {self._due} has not come")
                self._handle(TrainingEnded())
                self._lines.send(self._line, message)  # it need not stay for this one
                self._ended = True
            case AliveMessage():
                self._made = message.step
                self._member.given.was_counted(message.counted, message.step)
            case GotMessage():
                self._outgoing.got(message.pieces)
            case OpenMessage():
                self._helpers.opened(message.step, message.epoch)
                self._handle(StepOpened(message.step, message.stop, message.most_next))
            case SharesMessage():
                self._helpers.told(message)
            case TakeMessage() if self._steps.step is None and self._incoming is None:
                self._taking.told(message)
            case WithoutMessage():
                self._helpers.without(message.epoch, message.step, self._outgoing)
                coming = self._incoming
                if coming is not None and coming.epoch and not self._helpers.averages.is_made(coming.step):
                    self._incoming = None
            case MadeMessage():
                self._helpers.averages.made(message.step)
                self._take_averages()
            case CollectMessage():
                self._handle(CollectingWentOn(message.step))
            case TransferMessage():
                self._begin(message)
            case TensorMessage() if self._incoming is not None:
                self._incoming.take_tensor(message)
                self._finish_if_whole()
            case PieceMessage() if self._incoming is not None:
                self._incoming.take_piece(message, event.tensors)
                self._finish_if_whole()
            case _:
                raise InvalidInput(f"{type(message).__name__} out of turn")

    def _begin(self, message: TransferMessage) -> None:
        if message.what == "state" and self._steps.step is None:
            self._incoming = Incoming(message, self._trainer.state_forms(message.step))
        elif message.what == "average":
            self._incoming = self._helpers.averages.incoming(message, self._due)
        else:
            raise InvalidInput(f"a {message.what} of step {message.step} at step {self._due}")
        self._finish_if_whole()

    def _finish_if_whole(self) -> None:
        incoming = self._incoming
        if incoming is None or not incoming.whole:
            return
        self._incoming = None
        if incoming.what == "state":
            self._load(incoming)
        else:
            self._helpers.came(incoming, self._due)
            self._take_averages()

    def _load(self, state: Incoming) -> None:
        self._trainer.load(state.vectors, state.step)
        self._member.tell(f"holds the state of step {state.step}")
        self._due = state.step
        self._handle(StateCame(state.step))

    def _take_averages(self) -> None:
        """Go on with the averages that may be applied, in their order."""
        while (mean := self._helpers.averages.ready(self._due)) is not None:
            self._means[self._due] = mean
            came = AverageCame(self._due)
            self._helpers.took(self._due)
            self._due += 1
            if self._computing:
                self._waiting.append(came)
            else:
                self._handle(came)

    def _handle(self, event: PeerEvent) -> None:
        for instruction in self._steps.handle(event):
            match instruction:
                case CountMicroBatch():
                    self._trainer.count(self._micro_batch)
                    self._counted.append(self._member.given.micro_batches - 1)
                case ReportProgress(step=step, samples=samples, due=now):
                    self._report(step, samples, now)
                case SendContribution(step=step, samples=samples):
                    if self._losses:
                        self._report(step, samples, due=True)  # the losses belong to this step
                    vectors = self._trainer.contribution()
                    named, self._counted = spans_of(self._counted)[:MOST_SPANS], []
                    sent = self._feedback.pieces("contribution", step, samples, vectors, float(samples), named)
                    self._helpers.send(step, sent, self._outgoing)
                    self._pump()
                    self._member.given.samples += samples
                case ForgetSum():
                    self._trainer.forget()
                    self._counted = []
                case ApplyAverage(step=step):
                    self._trainer.apply(self._means.pop(step))
                    self._trainer.forget()
                    self._counted = []
                    self._member.given.steps += 1
                    self._member.tell_progress(self._trainer.step, self._trainer.total_steps, self._now())

    def _compute(self) -> None:
        weights = self._steps.applied
        began_s = self._now() if self._made_s is None else self._made_s
        given = self._member.given
        given.micro_batches += 1
        try:
            number = given.micro_batches - 1
            if self._beside is None:
                made = self._trainer.compute(number)
            else:
                made = self._beside.run(lambda: self._trainer.compute(number), self._tend)
        except NotFinite as error:
            given.not_finite += 1
            if given.not_finite >= MOST_NOT_FINITE:
                raise Diverged(f"{error}, {MOST_NOT_FINITE} micro-batches in a row") from error
            self._hear(0.0)
            return
        given.not_finite = 0
        self._losses.append((made.loss, made.samples))
        # What has come meanwhile counts first: the step may be open, and this micro-batch not wanted any more.
        self._hear(0.0)
        # Times are smoothed, not rates: the mean of rates is too fast where some micro-batches take long.
        self._made_s = self._now()
        seconds = self._made_s - began_s
        self._timed += 1
        self._seconds = seconds if self._timed <= 2 else (1 - SMOOTHED) * self._seconds + SMOOTHED * seconds
        self._handle(MicroBatchMade(weights, made.samples))
        if self._asks:  # the backbone learns how fast it is before it computes on: the batch may be full soon
            self._asks, self._made_s = False, None
            self._hear(IDLE_S)

    def _report(self, step: int, samples: int, due: bool) -> None:
        now_s = self._now()
        told, target = self._reported, self._trainer.target_batch
        if not due and told is not None and told.samples_per_s and not told.is_off(samples, target, now_s):
            return  # its first micro-batch says how fast it is
        rate = self._micro_batch / self._seconds if self._seconds else 0.0
        every_s = max(2 * REPORT_S, 2 * self._seconds)
        self._reported = Report(samples, rate, self._micro_batch, now_s, every_s)
        count = sum(number for _, number in self._losses)
        loss = sum(loss * number for loss, number in self._losses) / count if count else None
        self._losses = []
        message = ProgressMessage(
            step=step,
            samples=samples,
            samples_per_s=rate,
            micro_batch=self._micro_batch,
            every_s=every_s,
            loss=loss,
            loss_samples=count,
        )
        self._lines.send(self._line, message)

    def _pump(self) -> None:
        for said in self._outgoing.due():
            self._lines.send(self._line, *said)
        self._helpers.tend()
        self._taking.tend()
