"""A machine that is lent to a volunteer: it holds one stage of the model, and computes what it is told.

In: the line that the volunteer's own program has written, and somebody who agrees to the code. Out: a stage at work
until the volunteer's program ends or `stop` says so. It opens one connection, to that program, and comes back when the
connection ends, until `patience_s` have passed without success. All other words are heard between two computations;
a backward goes before a forward, so that no more micro-batches are under way than are needed.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from ravnest.collaboration.code_bundle import code_hash, require_safe, written
from ravnest.collaboration.invitation import BACKBONE, Invitation
from ravnest.collaboration.lent_messages import (
    LENT,
    LENT_PROTOCOL,
    MOST_HELD_BYTES,
    MOST_MESSAGE_BYTES,
    MOST_NAME,
    AskMessage,
    BackwardMessage,
    ClearMessage,
    CountMessage,
    DropMessage,
    FailedMessage,
    ForwardMessage,
    GradientMessage,
    LendMessage,
    LossMessage,
    OutputMessage,
    ReadyMessage,
    StageMessage,
    StepMessage,
    TargetMessage,
    ThanksMessage,
    VectorMessage,
    Vectors,
    send_vector,
)
from ravnest.collaboration.lent_stage import LentStage
from ravnest.collaboration.messages import MOST_CODE_FILES, CodeMessage
from ravnest.collaboration.trainer import require_device
from ravnest.errors import InvalidInput, RavnestError, RunFailed
from ravnest.free_memory import free_bytes
from ravnest.job.config import load_job
from ravnest.job.materials import capture_on, make_model
from ravnest.training.batches import Inputs, Target
from ring_allreduce.transport import LineClosed, Lines, LineSaid, Message

DIAL_S = 15.0
RETRY_S = 2.0
IDLE_S = 0.5

MEASURED = 384
"""Matrices of so many rows are multiplied to measure a machine: a few milliseconds of work."""


class Lender:
    """One machine that is lent. `work` is all there is to do with it."""

    def __init__(
        self,
        given: Invitation,
        name: str,
        home: Path,
        *,
        agree: Callable[[str, Path, list[str]], bool],
        device: str = "cpu",
        tell: Callable[[str], None] = lambda _: None,
        patience_s: float = 600.0,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`agree`: is called with the code's hash, its folder and its files before any of it is run. `home`: where the
        code is kept, by its hash. Raises InvalidInput for a name that is too long, or a device that is not there."""
        if len(name) > MOST_NAME:
            raise InvalidInput(f"expected at most {MOST_NAME} characters, not {len(name)}", key="--name")
        require_device(device)
        self._given, self._name, self._home, self._agree = given, name, home, agree
        self._device, self._tell, self._patience_s = device, tell, patience_s
        self._now, self._sleep = now, sleep
        self.micro_batches = 0
        """That this machine has computed a backward of."""

    def work(self, stop: Callable[[], bool] = lambda: False) -> None:
        """Hold a stage until `stop` says so. Raises InvalidInput for code that was not agreed to or cannot run, and
        RunFailed when nobody was reached for too long."""
        since_s, why = self._now(), "nobody was asked"
        while not stop():
            for host, port in self._given.endpoints():
                lines, made = _lines(self._given), self.micro_batches
                try:
                    line = lines.dial(host, port, self._given.keys(), BACKBONE, DIAL_S)
                    visit = LentVisit(self, lines, line)
                    while not stop() and not visit.ended:
                        visit.turn()
                    if visit.thanked:
                        return
                    since_s, why = self._now(), "its line ended"
                except InvalidInput:
                    raise
                except RavnestError as error:
                    why = str(error)
                    if self.micro_batches > made:
                        since_s = self._now()
                finally:
                    lines.close()
                if stop():
                    return
                left_s = max(0.0, since_s + self._patience_s - self._now())
                self._tell(f"{host}:{port}: {why}; trying again, for {left_s:.0f} s at most")
                self._sleep(RETRY_S)
            if self._now() - since_s > self._patience_s:
                raise RunFailed(f"no volunteer was reached for {self._patience_s:.0f} s: {why}")

    def stage(self, files: dict[str, bytes], said: StageMessage, sample: Sequence[Tensor]) -> LentStage:
        """The stage of the code that was sent. Raises InvalidInput for other code than the line names."""
        if code_hash(files) != self._given.code_hash or said.job not in files:
            raise InvalidInput("the volunteer sent other code than its line names", key="LINE")
        folder = written(files, self._home)
        if not self._agree(self._given.code_hash, folder, sorted(files)):
            raise InvalidInput("you did not agree to run this code", key="LINE")
        job_file = folder / said.job
        job = load_job(job_file)
        captured = capture_on(job, job_file, inputs_of(said, sample))
        if captured.costs.fingerprint != said.fingerprint:
            raise InvalidInput("the model is captured otherwise here: another version of torch or of a library?")
        model = make_model(job, job_file, "meta")
        trained = [name for name, one in model.named_parameters() if one.requires_grad]
        torch.manual_seed(said.seed)
        program = captured.span(said.start, said.end)
        last = said.end == len(captured.units)
        self._tell(f"holds units {said.start} to {said.end} of {len(captured.units)} of the model")
        return LentStage(job, job_file, program, trained, last=last, total_steps=said.total_steps, device=self._device)

    def lend(self) -> LendMessage:
        """What this machine says of itself."""
        return LendMessage(
            protocol=LENT_PROTOCOL,
            name=self._name,
            flops_per_s=measured_flops_per_s(self._device),
            free_bytes=free_on(self._device),
        )


class LentVisit:
    """One line to a volunteer's program. `turn` is all there is to do with it, until it has ended."""

    def __init__(self, lender: Lender, lines: Lines, line: int) -> None:
        self._lender, self._lines, self._line = lender, lines, line
        self._files: dict[str, bytes] = {}
        self.stage: LentStage | None = None
        """What this machine holds; None until the volunteer's program has said what."""
        self._said: StageMessage | None = None
        self._targets: dict[int, Target] = {}
        self._work: deque[tuple[ForwardMessage | BackwardMessage, tuple[Tensor, ...]]] = deque()
        self._vectors = Vectors()
        self.ended = False
        self.thanked = False
        """The volunteer's program has come to its end."""
        self._lines.send(self._line, lender.lend())

    def turn(self) -> None:
        """Hear what has come, and compute once. Raises RavnestError, which the other side is told."""
        for event in self._lines.take(0.0 if self._work else IDLE_S):
            if isinstance(event, LineClosed):
                self.ended = True
                return
            assert isinstance(event, LineSaid)
            if isinstance(event.message, FailedMessage):
                raise RunFailed(f"the volunteer's program says: {event.message.reason}")
            self._told(partial(self._take, event.message, event.tensors))
        if self._work and not self.ended:
            self._told(self._compute)

    def _told(self, act: Callable[[], None]) -> None:
        """Do it, and tell the other side why it cannot be done. What the user's own code raises is a RunFailed."""
        try:
            try:
                act()
            except RavnestError:
                raise
            except Exception as error:  # of the model, of the loss, or of torch, which may have no memory left
                said = " ".join(str(error).split()) or type(error).__name__
                raise RunFailed(f"computing failed: {said}") from error
        except RavnestError as error:
            self._lines.send(self._line, FailedMessage(reason=str(error)[:400]))
            raise

    def _take(self, message: Message, tensors: tuple[Tensor, ...]) -> None:
        if isinstance(message, ThanksMessage):
            self.ended = self.thanked = True
            return
        if isinstance(message, CodeMessage) and self.stage is None:
            require_safe(message.path)
            self._files[message.path] = message.data
            if len(self._files) > MOST_CODE_FILES:
                raise InvalidInput(f"the volunteer sends more than {MOST_CODE_FILES} files")
            return
        if isinstance(message, StageMessage) and self.stage is None:
            self.stage, self._said = self._lender.stage(self._files, message, tensors), message
            self._lines.send(self._line, ReadyMessage())
            return
        stage, said = self.stage, self._said
        if stage is None or said is None:
            raise InvalidInput(f"{type(message).__name__} before there is a stage")
        match message:
            case ForwardMessage() | BackwardMessage():
                self._work.append((message, tensors))
            case TargetMessage(turn=turn):
                self._targets[turn] = target_of(said, tensors)
            case CountMessage(turn=turn, samples=samples):
                stage.count(turn, samples)
            case DropMessage(what="sums"):
                stage.drop_sums()
            case DropMessage():
                self._work.clear()
                self._targets.clear()
                stage.drop_turns()
            case AskMessage(what=what, name=name):
                asked = {"sum": stage.take_sum, "buffer": stage.buffer, "weight": stage.weight}[what]
                send_vector(self._lines, self._line, what, name, asked(name))
            case ClearMessage(step=step):
                self._work.clear()
                self._targets.clear()
                stage.clear(step)
            case VectorMessage():
                self._set(stage, message, tensors)
            case StepMessage():
                stage.step()
            case _:
                raise InvalidInput(f"{type(message).__name__} is nothing that a volunteer's program says")

    def _set(self, stage: LentStage, message: VectorMessage, tensors: Sequence[Tensor]) -> None:
        vector = self._vectors.take(message, tensors)
        if vector is None:
            return
        match message.what:
            case "weight":
                stage.set_weight(message.name, vector)
            case "buffer":
                stage.set_buffer(message.name, vector)
            case "optimizer":
                stage.set_optimizer(message.name, message.key, vector)
            case "gradient":
                stage.set_mean(message.name, vector)
            case _:
                raise InvalidInput(f"a {message.what} that nobody asked for")

    def _compute(self) -> None:
        """One forward or backward: backwards first, in their order. The last stage makes both at once."""
        stage = self.stage
        assert stage is not None
        place = next((at for at, (one, _) in enumerate(self._work) if isinstance(one, BackwardMessage)), 0)
        message, tensors = self._work[place]
        del self._work[place]
        turn = message.turn
        if isinstance(message, ForwardMessage):
            target = self._targets.pop(turn, None)
            outputs = stage.forward(turn, tensors, target)
            if target is None:
                self._lines.send(self._line, OutputMessage(turn=turn), outputs)
                return
            loss = float(outputs[0])
            if not torch.isfinite(outputs[0]):
                self._lines.send(self._line, LossMessage(turn=turn, loss=None))
                return
            self._lines.send(self._line, LossMessage(turn=turn, loss=loss))
            tensors = ()
        made = stage.backward(turn, tensors)
        self._lender.micro_batches += 1
        self._lines.send(self._line, GradientMessage(turn=turn, finite=made.finite), made.gradients)


def _lines(given: Invitation) -> Lines:
    return Lines(
        LENT,
        bytes.fromhex(given.token),
        max_message_bytes=MOST_MESSAGE_BYTES,
        most_unread_bytes=MOST_HELD_BYTES,
        most_queued_bytes=MOST_HELD_BYTES,
        most_bytes=MOST_HELD_BYTES,
    )


def inputs_of(said: StageMessage, tensors: Sequence[Tensor]) -> Inputs:
    """A micro-batch's inputs as the model takes them. Raises InvalidInput where their number is another."""
    if said.keywords is None:
        return tuple(tensors)
    if len(tensors) != len(said.keywords):
        raise InvalidInput(f"{len(said.keywords)} inputs were named, and {len(tensors)} sent")
    return dict(zip(said.keywords, tensors, strict=True))


def target_of(said: StageMessage, tensors: Sequence[Tensor]) -> Target:
    """A target as the data set has it. Raises InvalidInput where the number of its tensors is another."""
    if said.target == "tuple":
        return tuple(tensors)
    if len(tensors) != (1 if said.target == "tensor" else len(said.target_keys)):
        raise InvalidInput(f"{len(tensors)} tensors are no target of this job")
    return tensors[0] if said.target == "tensor" else dict(zip(said.target_keys, tensors, strict=True))


def free_on(device: str) -> int:
    """How many bytes a stage on this device can get."""
    return int(torch.cuda.mem_get_info(device)[0]) if torch.device(device).type == "cuda" else free_bytes()


def measured_flops_per_s(device: str = "cpu") -> float:
    """What this device makes of products of matrices now: the best of some tries."""
    one, other = (torch.rand(MEASURED, MEASURED, device=device) for _ in range(2))
    best_s = 1e9
    for _ in range(5):
        began_s = time.perf_counter()
        float((one @ other)[0, 0])  # a GPU is waited for
        best_s = min(best_s, time.perf_counter() - began_s)
    return 2 * MEASURED**3 / max(best_s, 1e-9)
