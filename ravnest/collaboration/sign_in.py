"""Who a volunteer is, and its first words on a line: it proves its key, is sent the code, and makes the model.

In: a line to a backbone, and a member. Out: the member's trainer, and what else has come on the line; or why this leads
to nothing. Each word of the backbone has to come within ANSWER_S.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from ravnest.collaboration.code_bundle import require_safe
from ravnest.collaboration.messages import (
    MOST_CODE_FILES,
    MOST_NAME,
    PROTOCOL,
    ChallengeMessage,
    CodeMessage,
    EndMessage,
    HelloMessage,
    JoinMessage,
    RefusedMessage,
    WelcomeMessage,
)
from ravnest.collaboration.trainer import Trainer
from ravnest.collaboration.transfers import form_in_words
from ravnest.errors import InvalidInput, RunFailed
from ring_allreduce.transport import Keys, LineClosed, LineEvent, Lines, LineSaid, Message

ANSWER_S = 60.0
"""The backbone's next word while a volunteer joins may take so long."""

SILENT_S = 300.0
"""A backbone that works says something every ALIVE_S; it may write its state for some time."""

LOOK_S = 30.0
"""Another machine that has taken over is looked for when the backbone said nothing for so long, and so often then."""

IDLE_S = 0.5

TOLD_S = 30.0
"""A volunteer says at most this often what it has given."""


@dataclass
class Given:
    """What a volunteer has done so far."""

    samples: int = 0
    """That were sent. Those of a step that was committed without them do not count."""
    counted: int | None = None
    """Of its key, in all, as the backbone has said when it had made `counted_step` steps."""
    counted_step: int = 0
    steps: int = 0
    visits: int = 0
    micro_batches: int = 0
    not_finite: int = 0
    """Micro-batches in a row whose loss or gradient was not finite."""
    weights: str = ""
    """The hash of the weights that it holds at its end; empty where it holds none."""

    def in_words(self) -> str:
        """What the leaderboard has said last."""
        if self.counted is None:
            return ""
        return f"; after step {self.counted_step:,} the leaderboard counted {self.counted:,} for this key"

    def was_counted(self, samples: int | None, step: int) -> None:
        """The backbone, which has made so many steps, says how many samples are counted."""
        self.counted, self.counted_step = samples, step


@dataclass
class Member:
    """Who a volunteer is, and what outlives one visit."""

    name: str
    public_key: bytes
    signature: Callable[[bytes], bytes]
    """Of the backbone's nonce."""
    trainer: Callable[[dict[str, bytes], str, int], Trainer]
    """The model of the code that was sent, of a job, for a visit of that number."""
    tell: Callable[[str], None]
    given: Given = field(default_factory=Given)
    signatures: tuple[bytes, ...] = ()
    """Of the code that was sent last; whether they are any is not known yet."""
    is_served_after: Callable[[int], bool] = lambda _: False
    """Whether one of the backbone's machines serves by a term that is greater than this one. It is asked seldom."""
    term: int = 0
    """Of the backbone that serves it."""
    keys: Keys | None = None
    """What lines to machines that add up shares are opened with; None: such lines cannot be opened."""
    _told_s: float | None = None
    _looked_s: float = 0.0

    def require_heard(self, heard_s: float, now_s: float) -> None:
        """Raises RunFailed where a backbone that was heard last at that time has to be left."""
        if now_s > heard_s + SILENT_S:
            raise RunFailed(f"the backbone said nothing for {SILENT_S:.0f} s")
        if now_s > max(heard_s, self._looked_s) + LOOK_S:
            self._looked_s = now_s
            if self.is_served_after(self.term):
                raise RunFailed(f"the backbone said nothing for {now_s - heard_s:.0f} s, and another machine serves")

    def tell_progress(self, step: int, total_steps: int | None, now_s: float) -> None:
        """Say what was given by now, after a step was made; not sooner than TOLD_S after the last time."""
        if self._told_s is not None and now_s < self._told_s + TOLD_S:
            return
        self._told_s = now_s
        of = "" if total_steps is None else f" of {total_steps:,}"
        steps = "1 step" if self.given.steps == 1 else f"{self.given.steps:,} steps"
        self.tell(f"step {step:,}{of}: sent {self.given.samples:,} samples in {steps} so far{self.given.in_words()}")


class TrainingOver(RunFailed):
    """The backbone says that training has ended, to one that has not joined yet."""


class Refused(RunFailed):
    """The backbone has ended the line on purpose, and says why."""


def require_name(name: str) -> None:
    """Raises InvalidInput at --name for one that no backbone takes."""
    if not name.isprintable() or not name.strip() or "#" in name or len(name) > MOST_NAME:
        raise InvalidInput(f"expected up to {MOST_NAME} printable characters, and no #", key="--name")


def sign_in(
    member: Member, lines: Lines, line: int, now: Callable[[], float], stop: Callable[[], bool] = lambda: False
) -> tuple[Trainer, list[LineEvent]]:
    """Return the trainer of the code that was sent, and events that have come and were not looked at.

    Raises RavnestError when this leads to nothing, or `stop` says so.
    """
    said = _Words(lines, line, now, stop)
    challenge = said.next(ChallengeMessage)
    assert isinstance(challenge, ChallengeMessage)
    if challenge.protocol != PROTOCOL:
        raise InvalidInput(f"the backbone speaks version {challenge.protocol} of the protocol, not {PROTOCOL}")
    if not challenge.serves:
        raise RunFailed("this machine stands by")
    member.term = challenge.term
    hello = HelloMessage(
        protocol=PROTOCOL,
        name=member.name,
        public_key=member.public_key,
        signature=member.signature(challenge.nonce),
    )
    lines.send(line, hello)
    files: dict[str, bytes] = {}
    while True:
        message = said.next(CodeMessage, WelcomeMessage)
        if isinstance(message, WelcomeMessage):
            break
        assert isinstance(message, CodeMessage)
        require_safe(message.path)
        files[message.path] = message.data
        if len(files) > MOST_CODE_FILES:
            raise InvalidInput(f"the backbone sends more than {MOST_CODE_FILES} files")
    member.signatures = tuple(message.signatures)
    trainer = member.trainer(files, message.job, message.session)
    lines.send(line, JoinMessage(form=form_in_words(trainer.packing.sent), order=trainer.order))
    member.tell(f"joined; takes the state of {len(trainer.state_forms(0))} tensors")
    return trainer, said.waiting


class _Words:
    """What the backbone says, one by one."""

    def __init__(self, lines: Lines, line: int, now: Callable[[], float], stop: Callable[[], bool]) -> None:
        self._lines, self._line, self._now, self._stop = lines, line, now, stop
        self.waiting: list[LineEvent] = []

    def next(self, *kinds: type[Message]) -> Message:
        """The next message, which is of one of these kinds. Raises RavnestError for any other, or none in time."""
        deadline_s = self._now() + ANSWER_S
        while not self.waiting:
            if self._stop():
                raise RunFailed("stopped before the backbone had answered")
            if self._now() > deadline_s:
                raise RunFailed(f"the backbone said nothing for {ANSWER_S:.0f} s")
            self.waiting += self._lines.take(IDLE_S)
        event = self.waiting.pop(0)
        if isinstance(event, LineClosed):
            raise RunFailed(f"the line ended: {event.reason}")
        assert isinstance(event, LineSaid)
        if isinstance(event.message, RefusedMessage):
            failure = RunFailed if event.message.may_return else Refused
            raise failure(f"the backbone refused this volunteer: {event.message.reason}")
        if isinstance(event.message, EndMessage):
            raise TrainingOver("training has ended before this volunteer had joined")
        if not isinstance(event.message, kinds):
            raise RunFailed(f"the backbone sent {type(event.message).__name__} out of turn")
        return event.message
