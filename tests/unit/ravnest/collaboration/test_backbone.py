"""What a backbone does with volunteers is tested over real lines, in tests/integration/test_collaboration.py; here are
the ends and the lies that take long to bring about with processes."""

import json
from collections import deque
from pathlib import Path
from typing import Any

import pytest
import torch

from ravnest.collaboration import backbone as module
from ravnest.collaboration import spot_checks
from ravnest.collaboration.backbone import Backbone
from ravnest.collaboration.backbone_state import BackboneState
from ravnest.collaboration.code_bundle import code_hash, collected
from ravnest.collaboration.evaluations import Evaluations, at_once
from ravnest.collaboration.messages import (
    PROTOCOL,
    ChallengeMessage,
    EndMessage,
    FollowMessage,
    GiveMessage,
    GotMessage,
    HelloMessage,
    JoinMessage,
    OpenMessage,
    PieceMessage,
    ProgressMessage,
    RefusedMessage,
    TakeMessage,
    TookMessage,
    TransferMessage,
    WelcomeMessage,
    signed_part,
)
from ravnest.collaboration.signatures import FILE, signed, signers
from ravnest.collaboration.stand_by import proof
from ravnest.collaboration.trainer import Trainer
from ravnest.collaboration.transfers import form_in_words, pieces
from ravnest.collaboration.visitor import HEAR_S
from ravnest.dht import KeyIdentity, new_identity
from ravnest.errors import InvalidInput
from ravnest.job.config import load_job
from ring_allreduce.transport import LineClosed, LineOpened, LineSaid
from tests.unit.ravnest.collaboration.jobs import job_in
from tests.unit.ravnest.collaboration.lines_twin import LinesTwin


class World:
    """A backbone without sockets, and volunteers that say what a test tells them to."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, samples: int = 64, **job: Any) -> None:
        path = job_in(folder / "job", samples=samples, **job)
        self.lines = LinesTwin()
        monkeypatch.setattr(module, "Lines", lambda *_, **__: self.lines)
        self.told: list[str] = []
        self.kept = BackboneState(
            load_job(path), path, folder / "out", resume=False, tell=self.told.append, now=self.lines.now,
            evaluations=Evaluations(at_once),
        )  # fmt: skip
        self.path = path
        self.backbone = Backbone(self.kept, listen="127.0.0.1:0", tell=self.told.append, now=self.lines.now)
        self.trainer = Trainer(load_job(path), path)
        self.identities: dict[str, KeyIdentity] = {}
        self.taken: dict[int, int] = {}

    def turns(self, count: int) -> bool:
        """Serve for so many turns; returns whether the collaboration has ended."""
        left = iter(range(count))
        result = self.backbone.serve(lambda: next(left, None) is None)
        return result.weights is not None

    def signs_in(self, line: int) -> None:
        self.lines.events.append(LineOpened(line, "guest"))
        self.turns(8)
        self.answers(line, f"v{line}")
        self.turns(8)

    def answers(self, line: int, name: str) -> None:
        """It proves who it is, and has agreed."""
        (challenge,) = self.lines.said(ChallengeMessage, line)
        assert isinstance(challenge, ChallengeMessage)
        identity = self.identities.setdefault(name, new_identity())
        signature = identity.sign(signed_part(challenge.nonce, self.backbone.invitation.backbone_public, name))
        hello = HelloMessage(protocol=PROTOCOL, name=name, public_key=identity.public_key, signature=signature)
        for message in (hello, JoinMessage(form=form_in_words(self.trainer.packing.sent), order=name)):
            self.lines.events.append(LineSaid(line, message, ()))

    def joins(self, line: int) -> None:
        self.signs_in(line)
        taken = -1
        while taken < len(self.lines.said(PieceMessage, line)):  # the state comes a few pieces at a time
            taken = len(self.lines.said(PieceMessage, line))
            self.takes_all(line)
            self.turns(2)

    def takes_all(self, line: int) -> None:
        """It says that it has taken every piece that was sent to it."""
        taken = len(self.lines.said(PieceMessage, line))
        self.lines.events.append(LineSaid(line, GotMessage(pieces=taken), ()))

    def takes_last_averages(self, *lines: int) -> None:
        """They say so where there is something new."""
        for line in lines if self.backbone.step == 1 else ():
            if (sent := len(self.lines.said(PieceMessage, line))) > self.taken.get(line, 0):
                self.taken[line] = sent
                self.takes_all(line)

    def reports(self, line: int, samples: int) -> None:
        message = ProgressMessage(
            step=self.backbone.step, samples=samples, samples_per_s=0.0, micro_batch=8, every_s=2.0, loss=1.0,
            loss_samples=8,
        )  # fmt: skip
        self.lines.events.append(LineSaid(line, message, ()))

    def gives(self, line: int, samples: int, value: float) -> None:
        """A contribution whose mean is `value` everywhere."""
        forms = self.trainer.packing.sent
        vectors = [(form, torch.full((form.elements,), samples * value)) for form in forms]
        for message, tensors in pieces("contribution", self.backbone.step, samples, vectors, float(samples)):
            self.lines.events.append(LineSaid(line, message, tensors))

    def computes(self, line: int, count: int, lie: float = 1.0) -> None:
        """A contribution of so many micro-batches, by the weights of step 0, times `lie`."""
        volunteer = Trainer(load_job(self.path), self.path, order=f"v{line}")
        for number in range(count):
            volunteer.count(volunteer.compute(number).samples)
        total, statistics = volunteer.contribution()
        vectors = list(zip(volunteer.packing.sent, (lie * total, statistics), strict=True))
        sent = pieces("contribution", 0, 8 * count, vectors, 8.0 * count, None, [(0, count)])
        for message, tensors in sent:
            self.lines.events.append(LineSaid(line, message, tensors))


def test_who_turns_its_gradient_is_found_by_a_micro_batch_that_is_computed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, monkeypatch, samples=640, spot_check_share=1.0)
    for line in (1, 2):
        world.joins(line)
        world.takes_all(line)
        world.reports(line, 32)
    world.turns(2)
    monkeypatch.setattr(spot_checks, "LEAST_LOOKS", 1)
    for _ in range(3):
        world.computes(2, 1, lie=-1.0)  # of one micro-batch each single look is exact
    world.turns(40)
    assert sum("v2: a contribution was refused: micro-batches" in line for line in world.told) == 3
    (refused,) = world.lines.said(RefusedMessage, 2)
    assert isinstance(refused, RefusedMessage)
    assert "it sends something else than it says" in refused.reason
    monkeypatch.setattr(spot_checks, "LEAST_LOOKS", 2)  # of eight micro-batches a single look is not
    world.computes(1, 8)
    world.turns(40)
    assert not world.lines.said(RefusedMessage, 1)
    assert world.backbone.step == 1, "the other one's gradient was applied"


def test_silence_on_many_lines_keeps_no_volunteer_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path, monkeypatch)
    monkeypatch.setattr(module, "MOST_VISITORS", 6)
    monkeypatch.setattr(module, "MOST_UNSIGNED", 4)
    silent = range(100, 110)
    world.lines.events += [LineOpened(line, "guest") for line in silent]
    world.turns(16)
    world.joins(1)
    assert any("v1 joins" in line for line in world.told)
    assert world.lines.said(RefusedMessage, silent[0])
    assert not world.lines.said(RefusedMessage, 1)


def test_without_checks_nobody_needs_to_name_its_micro_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for share, refused in ((0.0, 0), (1e-9, 1)):
        world = World(tmp_path / str(share), monkeypatch, samples=640, spot_check_share=share)
        world.joins(1)
        world.takes_all(1)
        world.reports(1, 64)
        world.gives(1, 32, 0.1)
        world.turns(20)
        assert sum("0 micro-batches are named for 32 samples" in line for line in world.told) == refused


def test_the_end_waits_until_the_last_average_was_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path, monkeypatch)
    world.joins(1)
    world.joins(2)
    for line in (1, 2):
        world.takes_all(line)
        world.reports(line, 32)
    for line in (1, 2):
        world.gives(line, 32, 0.1)
    take = world.lines.take
    committed_s: list[float] = []

    def later(timeout_s: float) -> list[object]:
        """The first volunteer takes the average at once, the second after a while."""
        if world.backbone.step == 1 and not committed_s:
            committed_s.append(world.lines.now_s)
            world.takes_all(1)
        elif committed_s and world.lines.now_s >= committed_s[0] + 20.0 and len(committed_s) == 1:
            assert world.lines.said(EndMessage, 1)
            assert not world.lines.said(EndMessage, 2)
            committed_s.append(world.lines.now_s)
            world.takes_all(2)
        return take(timeout_s)  # type: ignore[return-value]

    monkeypatch.setattr(world.lines, "take", later)
    assert world.turns(200)
    assert len(committed_s) == 2
    sent = [(line, type(message)) for line, message, _ in world.lines.sent]
    for line in (1, 2):
        assert sent.count((line, EndMessage)) == 1


@pytest.mark.parametrize("after_s", [1.0, 25.0, 1000.0])
def test_whose_line_ends_before_it_has_heard_of_the_end_is_told_when_it_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after_s: float
) -> None:
    world = World(tmp_path, monkeypatch)
    world.joins(1)
    world.joins(2)
    for line in (1, 2):
        world.takes_all(line)
        world.reports(line, 32)
    for line in (1, 2):
        world.gives(line, 32, 0.1)
    take = world.lines.take
    told_s: list[float] = []

    def later(timeout_s: float) -> list[object]:
        """The second volunteer's line breaks when it is told, and it dials again after a while."""
        now_s, events = world.lines.now_s, world.lines.events
        world.takes_last_averages(1, 2, 3)
        if not told_s and world.lines.said(EndMessage, 2):
            told_s.append(now_s)
            events.extend((LineSaid(1, EndMessage(step=1), ()), LineClosed(2, "broken")))
        elif told_s and now_s > told_s[0] + after_s and not world.lines.said(ChallengeMessage, 3):
            events.append(LineOpened(3, "guest"))
        elif world.lines.said(ChallengeMessage, 3) and not world.lines.said(WelcomeMessage, 3):
            world.answers(3, "v2")
        elif world.lines.said(EndMessage, 3):
            events.append(LineSaid(3, EndMessage(step=1), ()))
        return take(timeout_s)  # type: ignore[return-value]

    monkeypatch.setattr(world.lines, "take", later)
    assert world.turns(400)
    assert bool(world.lines.said(EndMessage, 3)) is (after_s < module.RETURN_S)
    assert world.lines.now_s < told_s[0] + module.RETURN_S + 2.0
    assert not world.lines.said(RefusedMessage)
    assert set(world.lines.hung_up) == ({1, 3} if after_s < module.RETURN_S else {1})  # they have said that it ended


def test_who_was_told_of_the_end_is_waited_for_until_it_says_so_and_no_longer_than_need_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, monkeypatch)
    world.joins(1)
    world.takes_all(1)
    world.reports(1, 64)
    world.gives(1, 64, 0.1)
    take = world.lines.take

    def later(timeout_s: float) -> list[object]:
        """It takes the average, and says nothing more."""
        world.takes_last_averages(1)
        return take(timeout_s)  # type: ignore[return-value]

    monkeypatch.setattr(world.lines, "take", later)
    began_s = world.lines.now_s
    assert world.turns(400)
    assert HEAR_S <= world.lines.now_s - began_s < HEAR_S + 5.0
    assert not world.lines.said(RefusedMessage, 1)


def test_who_never_takes_the_last_average_is_not_waited_for_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, monkeypatch)
    world.joins(1)
    world.takes_all(1)
    world.reports(1, 64)
    world.gives(1, 64, 0.1)
    assert world.turns(200)
    assert not world.lines.said(EndMessage)
    assert any("v1" in line and "in time" in line for line in world.told)
    (refused,) = world.lines.said(RefusedMessage, 1)  # it need not look for a backbone any more
    assert isinstance(refused, RefusedMessage)
    assert not refused.may_return


def test_who_still_makes_its_model_is_told_that_training_has_ended_and_all_what_of_theirs_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, monkeypatch)
    world.joins(1)
    world.lines.events.append(LineOpened(2, "guest"))
    world.turns(8)
    world.answers(2, "v2")
    world.lines.events.pop()  # it has not agreed yet
    world.takes_all(1)
    world.reports(1, 64)
    world.gives(1, 64, 0.1)
    take = world.lines.take

    def takes_the_last(timeout_s: float) -> list[object]:
        world.takes_last_averages(1)
        return take(timeout_s)  # type: ignore[return-value]

    monkeypatch.setattr(world.lines, "take", takes_the_last)
    assert world.turns(400)
    assert world.lines.said(EndMessage, 1) == [EndMessage(step=1, counted=64)]
    assert world.lines.said(EndMessage, 2) == [EndMessage(step=1, counted=0)]
    words = [message for line, message, _ in world.lines.sent if line == 2]
    assert words.index(EndMessage(step=1, counted=0)) < len(words) - 1, "before the line is ended"


def test_finite_numbers_however_large_end_no_backbone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path, monkeypatch, samples=640)
    for line in (1, 2):
        world.joins(line)
        world.takes_all(line)
        world.reports(line, 32)
    for line in (1, 2):
        world.gives(line, 32, 1e18)
    world.turns(40)
    assert world.backbone.step == 0  # beyond what a contribution may hold: refused
    for line in (1, 2):
        world.gives(line, 32, 2e16)
    world.turns(40)
    assert world.backbone.step == 1
    assert not world.lines.said(RefusedMessage)
    assert all(bool(torch.isfinite(one).all()) for _, one in world.kept.trainer.state()), "joiners take no other"
    for line in (1, 2):
        world.takes_all(line)
        world.reports(line, 32)
    for line in (1, 2):
        world.gives(line, 32, 0.1)
    world.turns(40)
    assert world.backbone.step == 2


def test_states_wait_while_averages_are_under_way_though_not_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, monkeypatch, samples=640)
    for line in (1, 2):
        world.joins(line)
    world.lines.now_s += 1000.0  # so long takes the step
    for line in (1, 2):
        world.reports(line, 32)
    for line in (1, 2):
        world.gives(line, 32, 0.1)
    world.turns(20)
    assert world.backbone.step == 1
    committed_s = world.lines.now_s
    for line in range(3, 13):
        world.signs_in(line)
    assert not any(world.lines.said(TransferMessage, line) for line in range(3, 13))
    while not world.lines.said(TransferMessage, 3) and world.lines.now_s < committed_s + 600.0:
        world.turns(2)  # nobody takes the average
    assert world.lines.now_s > committed_s + 490.0
    sent = [line for line in range(3, 13) if world.lines.said(TransferMessage, line)]
    assert sent == list(range(3, 11))  # eight at a time
    assert max(len(world.lines.said(PieceMessage, line)) for line in sent) == 2
    world.lines.events.append(LineClosed(3, "gone"))
    world.turns(4)
    assert world.lines.said(TransferMessage, 11)


def test_who_says_that_it_leaves_has_left_and_of_who_says_nothing_the_connection_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, monkeypatch, samples=640)
    for line in (1, 2):
        world.joins(line)
    world.signs_in(3)  # it takes the state
    world.told.clear()
    world.lines.events += [LineSaid(line, EndMessage(step=0), ()) for line in (1, 3)]
    world.lines.events += [LineClosed(1, "the other side has ended"), LineClosed(2, "the other side has ended")]
    world.turns(8)
    said = ["v1 has left", "v3 has left", "the connection to v2 is lost: the other side has ended"]
    assert world.told == said
    assert set(world.lines.hung_up) == {1, 3}
    assert not world.lines.said(RefusedMessage)


def test_a_lie_is_counted_for_less_and_under_the_name_of_who_said_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, monkeypatch, samples=640)
    for line in (1, 2, 3):
        world.joins(line)
        world.takes_all(line)
        world.reports(line, 24)
    for line, value in ((1, 0.1), (2, 0.11), (3, 1e6)):
        world.gives(line, 24, value)
    world.turns(40)
    assert world.backbone.step == 1
    people = (tmp_path / "out" / "people.json").read_text()
    by_name = {entry["name"]: entry["scaled"] for entry in json.loads(people)}
    assert by_name == {"v1": 0, "v2": 0, "v3": 1}


@pytest.mark.parametrize("listen", ["7800", "host:", "host:99999", ":0"])
def test_a_place_to_listen_that_is_none_is_refused(tmp_path: Path, listen: str) -> None:
    path = job_in(tmp_path / "job")
    kept = BackboneState(
        load_job(path), path, tmp_path / "out", resume=False, tell=lambda _: None, now=lambda: 0.0
    )  # fmt: skip
    with pytest.raises(InvalidInput):
        Backbone(kept, listen=listen)


@pytest.mark.parametrize("knows", [True, False])
def test_another_machine_follows_if_it_knows_the_secret_and_gives_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, knows: bool
) -> None:
    world = World(tmp_path, monkeypatch)
    world.lines.events.append(LineOpened(1, "guest"))
    world.turns(2)
    (challenge,) = world.lines.said(ChallengeMessage, 1)
    assert isinstance(challenge, ChallengeMessage)
    kept = world.kept
    secret = kept.store.secrets.backbone_secret if knows else "00" * 32
    form = form_in_words(world.trainer.packing.sent)
    follow = FollowMessage(proof=proof(secret, challenge.nonce), code=kept.code, form=form)
    world.lines.events.append(LineSaid(1, follow, ()))
    world.turns(4)
    assert bool(world.lines.said(TransferMessage, 1)) is knows
    assert bool(world.lines.said(RefusedMessage, 1)) is not knows
    world.lines.sent.clear()
    world.reports(1, 64)
    world.turns(4)
    assert not world.lines.said(OpenMessage)
    assert bool(world.lines.said(RefusedMessage, 1)) is knows


def stands_by(world: World, line: int) -> None:
    """Another machine follows, and has the state."""
    world.lines.events.append(LineOpened(line, "guest"))
    world.turns(2)
    (challenge,) = world.lines.said(ChallengeMessage, line)
    assert isinstance(challenge, ChallengeMessage)
    shown = proof(world.kept.store.secrets.backbone_secret, challenge.nonce)
    form = form_in_words(world.trainer.packing.sent)
    follow = FollowMessage(proof=shown, code=world.kept.code, form=form, listens=f"b:{line}")
    world.lines.events.append(LineSaid(line, follow, ()))
    world.turns(4)
    while world.taken.get(line) != (sent := len(world.lines.said(PieceMessage, line))):
        world.taken[line] = sent
        world.takes_all(line)
        world.turns(2)


def test_who_takes_the_state_elsewhere_is_sent_every_average_and_not_told_of_the_end_before_it_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, monkeypatch)
    world.joins(1)
    world.takes_all(1)
    stands_by(world, 9)
    world.signs_in(2)
    (told,) = world.lines.said(TakeMessage, 2)
    (given,) = world.lines.said(GiveMessage, 9)
    assert isinstance(told, TakeMessage)
    assert given == GiveMessage(visit=2, ticket=told.ticket, step=0)
    assert told.address == "b:9"
    world.reports(1, 64)
    world.gives(1, 64, 0.1)
    take, took_s = world.lines.take, list[float]()

    def later(timeout_s: float) -> list[object]:
        """All take the average at once; the second has the state after a while."""
        world.takes_last_averages(1, 2, 9)
        if world.backbone.step == 1 and world.lines.now_s > 40.0 and not took_s:
            took_s.append(world.lines.now_s)
            assert not world.lines.said(EndMessage, 2)
            world.lines.events.append(LineSaid(2, TookMessage(step=0), ()))
        for line in (1, 2, 9) if took_s else ():
            if world.lines.said(EndMessage, line):
                world.lines.events.append(LineSaid(line, EndMessage(step=1), ()))
        return take(timeout_s)  # type: ignore[return-value]

    monkeypatch.setattr(world.lines, "take", later)
    assert world.turns(400)
    sent = [message for message in world.lines.said(TransferMessage, 2) if isinstance(message, TransferMessage)]
    assert [(message.what, message.step) for message in sent] == [("average", 0)]
    assert took_s
    assert world.lines.said(EndMessage, 2)


def test_who_is_ready_in_the_moment_of_a_commit_is_told_of_the_state_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first average is that of the next step: this one's was sent to all others already."""
    world = World(tmp_path, monkeypatch, samples=640)
    world.joins(1)
    world.takes_all(1)
    stands_by(world, 9)
    world.lines.events.append(LineOpened(2, "guest"))
    world.turns(2)
    world.answers(2, "v2")
    world.turns(1)
    joins = world.lines.events.pop()
    world.reports(1, 64)
    world.turns(2)
    world.gives(1, 64, 0.1)
    world.lines.events.appendleft(joins)
    take = world.lines.take

    def at_once(timeout_s: float) -> list[object]:
        found, world.lines.events = [*world.lines.events], deque()
        return found or take(timeout_s)  # type: ignore[return-value]

    monkeypatch.setattr(world.lines, "take", at_once)
    world.turns(1)
    assert world.backbone.step == 1
    (told,) = world.lines.said(TakeMessage, 2)
    assert isinstance(told, TakeMessage)
    assert told.step == 1
    assert not world.lines.said(TransferMessage, 2)


@pytest.mark.parametrize("late", [False, True])
def test_who_says_out_of_turn_that_it_took_the_state_or_never_says_it_is_put_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    world = World(tmp_path, monkeypatch)
    if late:
        stands_by(world, 9)
    world.joins(1)
    assert bool(world.lines.said(TakeMessage, 1)) is late
    if late:
        world.lines.now_s += 1000.0
    else:
        world.lines.events.append(LineSaid(1, TookMessage(step=0), ()))
    world.turns(4)
    (refused,) = world.lines.said(RefusedMessage, 1)
    assert isinstance(refused, RefusedMessage)
    assert refused.may_return is late
    if late:
        assert world.lines.said(GiveMessage, 9)[-1] == GiveMessage(visit=1, ticket=b"", step=0)


def test_signatures_of_the_code_reach_volunteers_and_wrong_ones_stop_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = job_in(tmp_path / "job", samples=64)
    out = tmp_path / "out"
    out.mkdir()
    moderator, code = new_identity(), code_hash(collected(path))
    (out / FILE).write_text(signed(moderator, code))
    world = World(tmp_path, monkeypatch)
    world.signs_in(1)
    (welcome,) = world.lines.said(WelcomeMessage, 1)
    assert isinstance(welcome, WelcomeMessage)
    assert signers(welcome.signatures, code, [moderator.public_key.hex()]) == [moderator.public_key.hex()]
    (out / FILE).write_text(signed(moderator, "00" * 32))
    with pytest.raises(InvalidInput, match="other code"):
        BackboneState(load_job(path), path, out, resume=True, tell=lambda _: None, now=lambda: 0.0)
