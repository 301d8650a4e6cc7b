"""How a machine computes is tested in test_staged_trainer.py, against one machine that holds the whole model."""

from pathlib import Path
from typing import Any

import pytest
import torch

from ravnest.collaboration import lending
from ravnest.collaboration.code_bundle import code_hash, collected
from ravnest.collaboration.invitation import Invitation
from ravnest.collaboration.lending import Lender, LentVisit, inputs_of, measured_flops_per_s, target_of
from ravnest.collaboration.lent_messages import (
    LENT_PROTOCOL,
    AskMessage,
    FailedMessage,
    LendMessage,
    StageMessage,
    TargetForm,
    ThanksMessage,
)
from ravnest.collaboration.messages import CodeMessage
from ravnest.errors import InvalidInput, RunFailed
from ring_allreduce.transport import KeyPair, LineClosed, LineSaid, Message
from tests.unit.ravnest.collaboration.jobs import job_in
from tests.unit.ravnest.collaboration.lines_twin import LinesTwin


def invitation(code: str = "00" * 32) -> Invitation:
    own, guest = KeyPair.make(), KeyPair.make()
    return Invitation(("127.0.0.1:1",), own.public, guest.public, guest.secret, "ab" * 16, code)


def visit(tmp_path: Path, code: str, *, agrees: bool = True) -> tuple[LentVisit, LinesTwin]:
    lines = LinesTwin()
    lender = Lender(invitation(code), "cellar", tmp_path, agree=lambda code, folder, files: agrees)
    return LentVisit(lender, lines, 0), lines  # type: ignore[arg-type]


def stage(target: TargetForm = "tensor", keywords: tuple[str, ...] | None = None, **keys: object) -> StageMessage:
    said = {"job": "job.yaml", "start": 0, "end": 1, "fingerprint": "0" * 32, "seed": 0, "total_steps": None} | keys
    return StageMessage(target=target, target_keys=("a", "b"), keywords=keywords, **said)  # type: ignore[arg-type]


def hears(one: LentVisit, lines: LinesTwin, *messages: Message) -> None:
    for message in messages:
        tensors = (torch.zeros(8, 6),) if isinstance(message, StageMessage) else ()
        lines.events.append(LineSaid(0, message, tensors))
        one.turn()


def test_a_machine_says_first_how_fast_it_is_and_what_memory_it_has(tmp_path: Path) -> None:
    _, lines = visit(tmp_path, "00" * 32)
    (said,) = lines.said(LendMessage)
    assert isinstance(said, LendMessage)
    assert said.protocol == LENT_PROTOCOL
    assert said.free_bytes > 0
    assert measured_flops_per_s() > 1e6


def test_code_runs_only_as_the_line_names_it_and_agreed(tmp_path: Path) -> None:
    files = collected(job_in(tmp_path / "job"))
    code = [CodeMessage(path=path, data=data) for path, data in files.items()]
    for given, agrees, words in (("00" * 32, True, "other code"), (code_hash(files), False, "not agree")):
        one, lines = visit(tmp_path, given, agrees=agrees)
        with pytest.raises(InvalidInput, match=words):
            hears(one, lines, *code, stage())
        assert words in str(lines.said(FailedMessage)[0])


def test_a_model_that_is_captured_otherwise_here_is_not_computed(tmp_path: Path) -> None:
    files = collected(job_in(tmp_path / "job"))
    one, lines = visit(tmp_path, code_hash(files))
    with pytest.raises(InvalidInput, match="captured otherwise"):
        hears(one, lines, *(CodeMessage(path=path, data=data) for path, data in files.items()), stage())


def test_what_nobody_says_at_this_point_ends_the_visit(tmp_path: Path) -> None:
    one, lines = visit(tmp_path, "00" * 32)
    with pytest.raises(InvalidInput, match="before there is a stage"):
        hears(one, lines, AskMessage(what="weight", name="x"))
    with pytest.raises(InvalidInput, match="plain path"):
        hears(one, lines, CodeMessage(path="../x.py", data=b""))
    with pytest.raises(RunFailed, match="no place"):
        hears(one, lines, FailedMessage(reason="no place"))


def test_a_visit_ends_with_its_line_or_with_thanks(tmp_path: Path) -> None:
    one, lines = visit(tmp_path, "00" * 32)
    lines.events.append(LineClosed(0, "gone"))
    one.turn()
    assert one.ended
    assert not one.thanked
    one, lines = visit(tmp_path, "00" * 32)
    hears(one, lines, ThanksMessage())
    assert one.thanked


def test_inputs_and_targets_have_the_form_that_the_data_set_gives() -> None:
    one, other = torch.zeros(2), torch.ones(2)
    assert isinstance(inputs_of(stage(), (one, other)), tuple)
    assert inputs_of(stage(keywords=("x", "y")), (one, other))["y"] is other  # type: ignore[call-overload]
    assert target_of(stage(), (one,)) is one
    assert target_of(stage("tuple"), (one, other)) == (one, other)
    assert list(target_of(stage("dict"), (one, other))) == ["a", "b"]
    for target, tensors in (("tensor", (one, other)), ("dict", (one,))):
        with pytest.raises(InvalidInput, match="no target"):
            target_of(stage(target), tensors)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="2 inputs were named"):
        inputs_of(stage(keywords=("x", "y")), (one,))


@pytest.mark.parametrize(("name", "device", "key"), [("x" * 65, "cpu", "--name"), ("cellar", "abacus", "--device")])
def test_what_no_machine_is_called_or_has_is_the_users_to_mend(
    name: str, device: str, key: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidInput) as found:
        Lender(invitation(), name, tmp_path, agree=lambda code, folder, files: True, device=device)
    assert found.value.key == key


def test_free_memory_is_that_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (7, 9))
    assert lending.free_on("cuda") == 7
    assert lending.free_on("cpu") > 7


@pytest.mark.parametrize("error", [IndexError("index 7\nis out of range"), ValueError(), MemoryError()])
def test_whatever_the_users_code_raises_is_told_to_the_volunteer(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr(Lender, "stage", fails)
    one, lines = visit(tmp_path, "00" * 32)
    words = " ".join(str(error).split()) or type(error).__name__
    with pytest.raises(RunFailed, match=words):
        hears(one, lines, stage())
    assert words in str(lines.said(FailedMessage)[0])


def test_a_machine_that_has_worked_for_long_and_fails_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, visits = [0.0], list[float]()

    class Visit:
        ended = thanked = False

        def __init__(self, lender: Lender, *_: object) -> None:
            self.lender = lender
            visits.append(clock[0])

        def turn(self) -> None:
            clock[0] += 1000.0
            self.lender.micro_batches += len(visits) < 3
            raise RunFailed("no memory is left")

    class Dials(LinesTwin):
        def dial(self, *_: Any) -> int:
            return 0

    monkeypatch.setattr(lending, "_lines", lambda given: Dials())
    monkeypatch.setattr(lending, "LentVisit", Visit)
    lender = Lender(
        invitation(),
        "cellar",
        tmp_path,
        agree=lambda code, folder, files: True,
        patience_s=600.0,
        now=lambda: clock[0],
        sleep=lambda seconds: None,
    )
    with pytest.raises(RunFailed, match="no memory is left"):
        lender.work()
    assert len(visits) == 3  # in the third one it made nothing
