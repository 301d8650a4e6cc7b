"""Taking over is played in test_serving.py; here is what a machine that stands by answers and refuses."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from ravnest.collaboration import stand_by as module
from ravnest.collaboration.backbone_state import BackboneState
from ravnest.collaboration.messages import (
    PROTOCOL,
    ChallengeMessage,
    EndMessage,
    FollowMessage,
    LedgerMessage,
    RefusedMessage,
)
from ravnest.collaboration.stand_by import MOST_SILENT_S, SILENT_S, StandBy, is_served_further, proof
from ravnest.collaboration.transfers import pieces
from ravnest.errors import InvalidInput
from ravnest.job.config import load_job
from ring_allreduce.errors import DeadlinePassed
from ring_allreduce.transport import LineSaid, Message
from tests.unit.ravnest.collaboration.jobs import job_in
from tests.unit.ravnest.collaboration.lines_twin import LinesTwin


class World:
    """A machine that stands by, and what the serving one says to it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, *, answers: bool = True) -> None:
        path = job_in(folder / "job")
        self.serving = BackboneState(
            load_job(path), path, folder / "first", resume=False, tell=lambda _: None, now=lambda: 0.0
        )
        (folder / "second").mkdir()
        shutil.copy(folder / "first" / "keys.json", folder / "second" / "keys.json")
        self.state = BackboneState(
            load_job(path), path, folder / "second", resume=True, tell=lambda _: None, now=lambda: 0.0
        )
        self.lines = LinesTwin()

        def dial(*_: object) -> int:
            if not answers:
                raise DeadlinePassed("a handshake", 5.0)
            return 1

        self.lines.dial = dial  # type: ignore[attr-defined]
        monkeypatch.setattr(module, "Lines", lambda *_, **__: self.lines)
        self.invitation = self.state.invitation(("b:1", "a:1"))

    def says(self, message: Message, *tensors: torch.Tensor) -> None:
        self.lines.events.append(LineSaid(1, message, tensors))

    def challenges(self, term: int = 0, step: int = 0, protocol: int = PROTOCOL) -> None:
        self.says(ChallengeMessage(protocol=protocol, nonce=b"n" * 32, term=term, step=step))

    def hands_over(self) -> None:
        step, vectors = self.serving.of_joiners()
        for message, tensors in pieces("state", step, 0, vectors):
            self.says(message, *tensors)

    def makes_a_step(self) -> None:
        mean = [(form, torch.full((form.elements,), 0.1)) for form in self.serving.trainer.packing.sent]
        for message, tensors in pieces("average", self.serving.trainer.step, 64, mean):
            self.says(message, *tensors)
        self.serving.people.came("ab", "ada")
        self.serving.apply({"ada": 64}, {form.name: vector for form, vector in mean})
        self.says(LedgerMessage(entry=self.serving.ledger()[0], people=self.serving.people.text().encode()))

    def follow(self, stop: Callable[[], bool] = lambda: False) -> str:
        def sleep(seconds: float) -> None:
            self.lines.now_s += seconds

        standing_by = StandBy(
            self.state, self.invitation, ("a:1",), place=1, tell=lambda _: None, now=self.lines.now, sleep=sleep
        )
        return standing_by.follow(stop)


def test_it_proves_its_secret_and_follows_state_averages_curve_and_people(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, monkeypatch)
    world.challenges(term=3)
    world.hands_over()
    world.makes_a_step()
    world.makes_a_step()
    world.says(EndMessage(step=2))
    assert world.follow() == "ended"
    assert world.lines.said(EndMessage), "the one that serves waits for its word"
    (answer,) = world.lines.said(FollowMessage)
    assert isinstance(answer, FollowMessage)
    assert answer.proof == proof(world.serving.store.secrets.backbone_secret, b"n" * 32)
    assert world.state.standing == (3, 2)
    assert world.state.trainer.weights_hash() == world.serving.trainer.weights_hash()
    curves = [(tmp_path / name / "curve.jsonl").read_text() for name in ("first", "second")]
    assert curves[0] == curves[1]
    assert [person.name for person in world.state.people.ranked()] == ["ada"]


def test_it_takes_over_only_with_a_state_and_after_those_who_come_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, monkeypatch, answers=False)
    left = iter(range(100))
    assert world.follow(lambda: next(left, None) is None) == "stopped"
    assert world.state.term == 0
    step, vectors = world.serving.of_joiners()
    world.state.take_state({form.name: vector for form, vector in vectors}, step)
    world.lines.now_s = 0.0
    assert world.follow() == "serve"
    assert 20.0 <= world.lines.now_s <= 25.0
    assert world.state.store.read_term() == 1


@pytest.mark.parametrize("answers", [True, False])
def test_who_says_nothing_is_followed_on_while_it_answers_handshakes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: bool
) -> None:
    """It may evaluate, or write its state, for longer than SILENT_S."""
    world = World(tmp_path, monkeypatch)
    world.challenges()
    dialled = list[float]()

    def dial(*_: object) -> int:
        dialled.append(world.lines.now_s)
        if len(dialled) > 1 and not answers:
            raise DeadlinePassed("a handshake", 5.0)
        return len(dialled)

    world.lines.dial = dial  # type: ignore[attr-defined]

    def stop() -> bool:
        if answers and world.lines.now_s > 2.5 * SILENT_S:
            world.says(EndMessage(step=0))
        return world.lines.now_s > 3 * SILENT_S

    assert world.follow(stop) == ("ended" if answers else "stopped")
    assert len(world.lines.said(FollowMessage)) == 1
    if answers:
        assert len(dialled) == 3
        assert 1 not in list(world.lines.hung_up)[:2]


def test_who_says_nothing_for_too_long_is_left_even_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path, monkeypatch)
    lines = iter(range(1, 1000))
    world.lines.dial = lambda *_: next(lines)  # type: ignore[attr-defined]
    world.challenges()
    assert world.follow(lambda: world.lines.now_s > MOST_SILENT_S + 1.0) == "stopped"
    assert 1 in world.lines.hung_up


def test_it_serves_at_once_where_the_one_that_serves_knows_less(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, monkeypatch)
    _, vectors = world.serving.of_joiners()
    world.state.take_state({form.name: vector for form, vector in vectors}, 0)
    world.state.begin_term(2)
    world.challenges(term=1, step=900)
    assert world.follow() == "serve"
    assert world.state.term == 2


def test_a_refusal_of_other_code_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path, monkeypatch)
    world.challenges()
    world.says(RefusedMessage(reason="other code"))
    with pytest.raises(InvalidInput, match="other code"):
        world.follow()


@pytest.mark.parametrize(("term", "step", "further"), [(0, 0, False), (0, 1, True), (1, 0, True)])
def test_who_serves_stops_for_a_greater_term_or_step_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, term: int, step: int, further: bool
) -> None:
    world = World(tmp_path, monkeypatch)
    world.challenges(term, step)
    assert is_served_further(world.state.standing, world.invitation, ("a:1",), world.lines.now) is further


def test_nobody_who_serves_is_nobody_further(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path, monkeypatch, answers=False)
    assert not is_served_further(world.state.standing, world.invitation, ("a:1",), world.lines.now)
