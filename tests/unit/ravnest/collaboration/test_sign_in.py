from pathlib import Path

import pytest

from ravnest.collaboration.messages import (
    MOST_CODE_FILES,
    PROTOCOL,
    ChallengeMessage,
    CodeMessage,
    EndMessage,
    HelloMessage,
    JoinMessage,
    OpenMessage,
    RefusedMessage,
    WelcomeMessage,
)
from ravnest.collaboration.sign_in import ANSWER_S, Member, Refused, TrainingOver, require_name, sign_in
from ravnest.collaboration.trainer import Trainer
from ravnest.errors import InvalidInput, RunFailed
from ravnest.job.config import load_job
from ring_allreduce.transport import LineSaid, Message
from tests.unit.ravnest.collaboration.jobs import job_in
from tests.unit.ravnest.collaboration.lines_twin import LinesTwin

CHALLENGE = ChallengeMessage(protocol=PROTOCOL, nonce=b"n" * 32)
WELCOME = WelcomeMessage(files=1, job="job.yaml", session=4, signatures=[b"s" * 96])


@pytest.mark.parametrize("name", ["", "  ", "a#b", "a\tb", "x" * 65])
def test_a_name_that_no_backbone_takes_is_refused_before_anybody_is_dialled(name: str) -> None:
    with pytest.raises(InvalidInput, match="printable"):
        require_name(name)
    require_name("Łena 2 " + "x" * 57)


def member_of(folder: Path) -> tuple[Member, list[tuple[dict[str, bytes], str, int]]]:
    """A member, and what its trainer was made of."""
    path, asked = job_in(folder), list[tuple[dict[str, bytes], str, int]]()

    def trainer(files: dict[str, bytes], job: str, session: int) -> Trainer:
        asked.append((files, job, session))
        return Trainer(load_job(path), path, order="mine")

    return Member("ada", b"k" * 32, lambda nonce: b"signed " + nonce, trainer, lambda _: None), asked


def test_what_was_given_is_told_now_and_then(tmp_path: Path) -> None:
    member, _ = member_of(tmp_path)
    told: list[str] = []
    member.tell = told.append
    for number, now_s in enumerate((5.0, 6.0, 34.0, 36.0), 1):
        member.given.samples, member.given.steps = 512 * number, number
        member.tell_progress(number + 10, 200, now_s)
    assert told == [
        "step 11 of 200: sent 512 samples in 1 step so far",
        "step 14 of 200: sent 2,048 samples in 4 steps so far",
    ]
    member.given.was_counted(1536, 14)
    member.tell_progress(15, None, 99.0)
    assert (
        told[-1]
        == "step 15: sent 2,048 samples in 4 steps so far; after step 14 the leaderboard counted 1,536 for this key"
    )


def saying(*messages: Message) -> LinesTwin:
    lines = LinesTwin()
    lines.events.extend(LineSaid(3, message, ()) for message in messages)
    return lines


def test_it_proves_its_key_takes_the_code_and_says_what_its_model_averages(tmp_path: Path) -> None:
    member, asked = member_of(tmp_path)
    lines = saying(CHALLENGE, CodeMessage(path="a.py", data=b"x = 1"), WELCOME, OpenMessage(step=0, stop=8))
    trainer, waiting = sign_in(member, lines, 3, lines.now)  # type: ignore[arg-type]
    assert asked == [({"a.py": b"x = 1"}, "job.yaml", 4)]
    (hello,), (join,) = lines.said(HelloMessage), lines.said(JoinMessage)
    assert isinstance(hello, HelloMessage)
    assert isinstance(join, JoinMessage)
    assert hello.signature == b"signed " + b"n" * 32
    assert (trainer.order, join.order) == ("mine", "mine")
    assert member.signatures == (b"s" * 96,)
    assert waiting == []
    assert len(lines.events) == 1, "what comes after it is for the visit"


@pytest.mark.parametrize(
    ("said", "error", "words"),
    [
        ([ChallengeMessage(protocol=PROTOCOL - 1, nonce=b"n")], InvalidInput, "protocol"),
        ([CHALLENGE, CodeMessage(path="../a.py", data=b"")], InvalidInput, r"\.\."),
        ([CHALLENGE, *[CodeMessage(path="a.py", data=b"")] * (MOST_CODE_FILES + 1)], InvalidInput, "more than"),
        ([CHALLENGE, RefusedMessage(reason="no place", may_return=True)], RunFailed, "no place"),
        ([CHALLENGE, RefusedMessage(reason="no")], Refused, "no"),
        ([OpenMessage(step=0, stop=8)], RunFailed, "out of turn"),
        ([], RunFailed, f"nothing for {ANSWER_S:.0f} s"),
    ],
)
def test_what_leads_to_nothing_is_said(tmp_path: Path, said: list[Message], error: type[Exception], words: str) -> None:
    member, asked = member_of(tmp_path)
    if len(said) > MOST_CODE_FILES:
        said = [said[0], *(CodeMessage(path=f"{at}.py", data=b"") for at in range(MOST_CODE_FILES + 1))]
    lines = saying(*said)
    with pytest.raises(error, match=words):
        sign_in(member, lines, 3, lines.now)  # type: ignore[arg-type]
    assert asked == []


def test_who_is_asked_to_stop_waits_for_no_answer(tmp_path: Path) -> None:
    member, _ = member_of(tmp_path)
    lines = saying(CHALLENGE)
    with pytest.raises(RunFailed, match="stopped"):
        sign_in(member, lines, 3, lines.now, lambda: lines.now_s > 1.0)  # type: ignore[arg-type]
    assert lines.now_s < 3.0


def test_who_hears_that_training_has_ended_before_it_has_joined_is_told_so(tmp_path: Path) -> None:
    member, _ = member_of(tmp_path)
    lines = saying(CHALLENGE, EndMessage(step=4))
    with pytest.raises(TrainingOver, match="before this volunteer had joined"):
        sign_in(member, lines, 3, lines.now)  # type: ignore[arg-type]
