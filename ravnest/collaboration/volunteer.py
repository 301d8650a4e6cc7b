"""A volunteer: joins by an invitation, computes gradients at its own pace, and applies every average.

In: an invitation, a key of its own, and somebody who agrees to the code. Out: samples that the collaboration counts
under that key. It opens one connection outwards and listens to none. When the connection ends it comes back and takes
the state anew, from any of the backbone's addresses, until `patience_s` have passed without success.

The thread that computes also reads what has come, between two micro-batches; peer_steps.py decides what follows.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ravnest.collaboration.backbone import form_in_words
from ravnest.collaboration.code_bundle import code_hash, require_safe, written
from ravnest.collaboration.invitation import BACKBONE, Invitation
from ravnest.collaboration.messages import (
    COLLABORATION,
    MOST_CODE_FILES,
    PROTOCOL,
    ChallengeMessage,
    CodeMessage,
    CollectMessage,
    EndMessage,
    GotMessage,
    HelloMessage,
    JoinMessage,
    OpenMessage,
    PieceMessage,
    ProgressMessage,
    RefusedMessage,
    TensorMessage,
    TransferMessage,
    WelcomeMessage,
    signed_part,
)
from ravnest.collaboration.peer_steps import (
    ApplyAverage,
    AverageCame,
    CollectingWentOn,
    CountMicroBatch,
    MicroBatchMade,
    PeerEvent,
    PeerSteps,
    ReportProgress,
    SendContribution,
    StateCame,
    StepOpened,
)
from ravnest.collaboration.progress import Report
from ravnest.collaboration.trainer import Trainer
from ravnest.collaboration.transfers import Incoming, Outgoing, pieces
from ravnest.dht import KeyIdentity
from ravnest.errors import InvalidInput, RavnestError, RunFailed
from ravnest.job.config import load_job
from ring_allreduce.transport import LineClosed, LineEvent, Lines, LineSaid, Message

DIAL_S = 15.0
ANSWER_S = 60.0
"""The backbone's next word while a volunteer joins may take so long."""

RETRY_S = 2.0
REPORT_S = 1.0
"""Progress is told at least this often."""

LEAST_REPORT_S = 0.05
OFF = 0.02
"""Progress is told, too, when it is off what the backbone extrapolates by this part of a batch and two micro-batches,
though never twice in LEAST_REPORT_S."""

IDLE_S = 0.5
SMOOTHED = 0.3
"""How much the last micro-batch counts in the rate that is reported."""


class Refused(RunFailed):
    """The backbone has ended the line on purpose, and says why."""


@dataclass
class Given:
    """What a volunteer has done so far."""

    samples: int = 0
    steps: int = 0
    visits: int = 0
    weights: str = ""
    """The hash of the weights that it holds at its end; empty where it holds none."""


class Volunteer:
    """One volunteer. `work` is all there is to do with it."""

    def __init__(
        self,
        invitation: Invitation,
        identity: KeyIdentity,
        name: str,
        home: Path,
        *,
        agree: Callable[[str, Path, list[str]], bool],
        device: str = "cpu",
        tell: Callable[[str], None] = lambda _: None,
        patience_s: float = 600.0,
    ) -> None:
        """`agree`: is called with the code's hash, its folder and its files, before any of it is run. `home`: where
        the code is kept, by its hash."""
        self._invitation, self._identity, self._name, self._home = invitation, identity, name, home
        self._agree, self._device, self._tell, self._patience_s = agree, device, tell, patience_s
        self._trainer: Trainer | None = None
        self._micro_batches = 0
        self._lost_steps = 0
        self.given = Given()

    def work(self, stop: Callable[[], bool] = lambda: False) -> Given:
        """Compute until the collaboration ends or `stop` says so.

        Raises InvalidInput for an invitation that leads to other code, or code that cannot run; Refused; RunFailed when
        no backbone was reached for too long.
        """
        since_s, why = time.monotonic(), "nobody was asked"
        while not stop():
            for host, port in self._invitation.endpoints():
                lines = Lines(COLLABORATION, bytes.fromhex(self._invitation.token))
                try:
                    visit = _Visit(self, lines, lines.dial(host, port, self._invitation.keys(), BACKBONE, DIAL_S))
                    joined_s = time.monotonic()
                    if visit.run(stop):
                        return self.given
                    why = "its line ended"
                    since_s = time.monotonic() if time.monotonic() - joined_s > RETRY_S else since_s
                except (InvalidInput, Refused):
                    raise
                except RavnestError as error:
                    why = str(error)
                finally:
                    lines.close()
                self._tell(f"{host}:{port}: {why}; trying again")
                if stop():
                    return self.given
                time.sleep(RETRY_S)
            if time.monotonic() - since_s > self._patience_s:
                raise RunFailed(f"no backbone was reached for {self._patience_s:.0f} s: {why}")
        return self.given

    def signature(self, nonce: bytes) -> bytes:
        """What proves to the backbone who this is."""
        return self._identity.sign(signed_part(nonce, self._invitation.backbone_public, self._name))

    @property
    def name(self) -> str:
        """The name on the leaderboard."""
        return self._name

    @property
    def public_key(self) -> bytes:
        """The key on the leaderboard."""
        return self._identity.public_key

    def trainer(self, files: dict[str, bytes], job_name: str, session: int) -> Trainer:
        """The model of the code that was sent, made once. Raises InvalidInput for other code than was invited to."""
        if code_hash(files) != self._invitation.code_hash or job_name not in files:
            raise InvalidInput("the backbone sent other code than the invitation names", key="invitation")
        if self._trainer is None:
            folder = written(files, self._home)
            if not self._agree(self._invitation.code_hash, folder, sorted(files)):
                raise InvalidInput("you did not agree to run this code", key="invitation")
            job_file = folder / job_name
            order = f"{self.public_key.hex()}.{session}"
            self._trainer = Trainer(load_job(job_file), job_file, device=self._device, order=order)
        return self._trainer

    def next_micro_batch(self) -> int:
        """The number of the next micro-batch of this process."""
        self._micro_batches += 1
        return self._micro_batches - 1

    def say(self, line: str) -> None:
        """Tell whoever watches."""
        self._tell(line)


class _Visit:
    """One line to a backbone, from its first word to its end."""

    def __init__(self, volunteer: Volunteer, lines: Lines, line: int) -> None:
        self._volunteer, self._lines, self._line = volunteer, lines, line
        self._trainer: Trainer
        self._steps = PeerSteps()
        self._outgoing = Outgoing()
        self._incoming: Incoming | None = None
        self._lost: dict[str, Tensor] = {}  # what shorter forms have lost of contributions
        self._mean: dict[str, Tensor] = {}
        self._taken = 0
        self._ended = self._closed = False
        self._reported: Report | None = None
        self._seconds = 0.0  # of one micro-batch with all that is done beside it, smoothed
        self._made_s: float | None = None
        self._micro_batch = 1
        self._losses: list[tuple[float, int]] = []
        self._waiting: list[LineEvent] = []

    def run(self, stop: Callable[[], bool]) -> bool:
        """Work until the end of the collaboration (True), or of the line (False)."""
        self._sign_in()
        self._volunteer.given.visits += 1
        while not stop():
            full = self._steps.computes and self._steps.samples >= self._trainer.target_batch
            untold = self._reported is None or self._reported.samples != self._steps.samples
            if full and untold and self._steps.step is not None:
                self._report(self._steps.step, self._steps.samples, due=True)
            self._hear(IDLE_S if full or not self._steps.computes else 0.0)
            self._pump()
            if self._ended:
                self._volunteer.given.weights = self._trainer.weights_hash()
                return True
            if self._closed:
                return False
            # More than a whole batch is never one volunteer's: where steps are short, the word to stop comes late.
            if self._steps.computes and self._steps.samples < self._trainer.target_batch:
                self._compute()
        return True

    # Joining.

    def _sign_in(self) -> None:
        """Raises RavnestError when this leads to nothing."""
        challenge = self._next(ChallengeMessage)
        assert isinstance(challenge, ChallengeMessage)
        if challenge.protocol != PROTOCOL:
            raise InvalidInput(f"the backbone speaks version {challenge.protocol} of the protocol, not {PROTOCOL}")
        volunteer = self._volunteer
        hello = HelloMessage(
            protocol=PROTOCOL,
            name=volunteer.name,
            public_key=volunteer.public_key,
            signature=volunteer.signature(challenge.nonce),
        )
        self._lines.send(self._line, hello)
        files: dict[str, bytes] = {}
        while True:
            message = self._next(CodeMessage, WelcomeMessage)
            if isinstance(message, WelcomeMessage):
                break
            assert isinstance(message, CodeMessage)
            require_safe(message.path)
            files[message.path] = message.data
            if len(files) > MOST_CODE_FILES:
                raise InvalidInput(f"the backbone sends more than {MOST_CODE_FILES} files")
        self._trainer = volunteer.trainer(files, message.job, message.session)
        self._micro_batch = self._trainer.job.micro_batch
        self._lost = {form.name: torch.zeros(form.elements) for form in self._trainer.forms if form.wire != "exact"}
        self._lines.send(self._line, JoinMessage(form=form_in_words(self._trainer.forms)))
        volunteer.say(f"joined; takes the state of {len(self._trainer.state_forms(0))} tensors")

    def _next(self, *kinds: type[Message]) -> Message:
        """The next message, which is of one of these kinds. Raises RavnestError for any other, or none in time."""
        deadline_s = time.monotonic() + ANSWER_S
        while not self._waiting:
            if time.monotonic() > deadline_s:
                raise RunFailed(f"the backbone said nothing for {ANSWER_S:.0f} s")
            self._waiting += self._lines.take(IDLE_S)
        event = self._waiting.pop(0)
        if isinstance(event, LineClosed):
            raise RunFailed(f"the line ended: {event.reason}")
        assert isinstance(event, LineSaid)
        if isinstance(event.message, RefusedMessage):
            raise Refused(f"the backbone refused this volunteer: {event.message.reason}")
        if not isinstance(event.message, kinds):
            raise RunFailed(f"the backbone sent {type(event.message).__name__} out of turn")
        return event.message

    # Working.

    def _hear(self, wait_s: float) -> None:
        events = self._waiting or self._lines.take(wait_s)
        self._waiting = []
        for event in events:
            if isinstance(event, LineClosed):
                self._closed = True
            elif isinstance(event, LineSaid):
                try:
                    self._take(event.message, event)
                except InvalidInput as error:
                    raise RunFailed(f"the backbone sent what cannot be: {error}") from error

    def _take(self, message: Message, event: LineSaid) -> None:
        match message:
            case RefusedMessage():
                raise Refused(f"the backbone has ended this visit: {message.reason}")
            case EndMessage():
                self._ended = True
            case GotMessage():
                self._outgoing.got(message.pieces)
            case OpenMessage():
                self._handle(StepOpened(message.step, message.stop))
            case CollectMessage():
                self._handle(CollectingWentOn(message.step))
            case TransferMessage():
                self._begin(message)
            case TensorMessage() if self._incoming is not None:
                self._incoming.take_tensor(message)
                self._finish_if_whole()
            case PieceMessage() if self._incoming is not None:
                self._incoming.take_piece(message, event.tensors)
                self._taken += 1
                self._lines.send(self._line, GotMessage(pieces=self._taken))
                self._finish_if_whole()
            case _:
                raise InvalidInput(f"{type(message).__name__} out of turn")

    def _begin(self, message: TransferMessage) -> None:
        if message.what == "state" and self._steps.step is None:
            self._incoming = Incoming(message, self._trainer.state_forms(message.step))
        elif message.what == "average" and message.step == self._steps.step:
            self._incoming = Incoming(message, self._trainer.forms)
        else:
            raise InvalidInput(f"a {message.what} of step {message.step} at step {self._steps.step}")
        self._finish_if_whole()

    def _finish_if_whole(self) -> None:
        incoming = self._incoming
        if incoming is None or not incoming.whole:
            return
        self._incoming = None
        if incoming.what == "state":
            self._trainer.load(incoming.vectors, incoming.step)
            self._volunteer.say(f"holds the state of step {incoming.step}")
            self._handle(StateCame(incoming.step))
        else:
            self._mean = incoming.vectors
            self._handle(AverageCame(incoming.step))

    def _handle(self, event: PeerEvent) -> None:
        for instruction in self._steps.handle(event):
            match instruction:
                case CountMicroBatch():
                    self._trainer.count(self._micro_batch)
                case ReportProgress(step=step, samples=samples, due=now):
                    self._report(step, samples, now)
                case SendContribution(step=step, samples=samples):
                    vectors = self._trainer.contribution()
                    sent = pieces("contribution", step, samples, vectors, float(samples), self._lost)
                    self._outgoing.put(sent)
                    self._pump()
                    self._volunteer.given.samples += samples
                case ApplyAverage():
                    self._trainer.apply(self._mean)
                    self._trainer.forget()
                    self._volunteer.given.steps += 1

    def _compute(self) -> None:
        step = self._steps.step
        assert step is not None
        began_s = time.monotonic() if self._made_s is None else self._made_s
        made = self._trainer.compute(self._volunteer.next_micro_batch())
        self._losses.append((made.loss, made.samples))
        # What has come meanwhile counts first: the step may be open, and this micro-batch not wanted any more.
        self._hear(0.0)
        # Times are smoothed, not rates: the mean of rates is too fast where some micro-batches take long.
        self._made_s = time.monotonic()
        seconds = self._made_s - began_s
        self._seconds = seconds if not self._seconds else (1 - SMOOTHED) * self._seconds + SMOOTHED * seconds
        self._handle(MicroBatchMade(step, made.samples))
        if not self._steps.computes:
            self._made_s = None  # what follows is waiting

    def _report(self, step: int, samples: int, due: bool) -> None:
        now_s = time.monotonic()
        if not due and self._reported is not None and not self._is_off(samples, self._reported, now_s):
            return
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

    def _is_off(self, samples: int, told: Report, now_s: float) -> bool:
        silent_s = now_s - told.at_s
        most = max(2 * self._micro_batch, OFF * self._trainer.target_batch)
        return silent_s >= REPORT_S or (silent_s >= LEAST_REPORT_S and abs(samples - told.whole(now_s)) > most)

    def _pump(self) -> None:
        for said in self._outgoing.due():
            self._lines.send(self._line, *said)
