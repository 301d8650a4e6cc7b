"""Who is asked to add up shares, and when it rests; steps made by shares are played in test_sharing.py."""

from pathlib import Path

import pytest
import torch

from ravnest.collaboration import epochs, transfers
from ravnest.collaboration.epochs import AWAY_S, PLAN_S, REACH_S, REST_S, SILENT_S, Epochs, Helper
from ravnest.collaboration.messages import (
    AdmitMessage,
    FollowMessage,
    HelpMessage,
    ReachedMessage,
    SharesMessage,
    TransferMessage,
    WithoutMessage,
)
from ravnest.collaboration.packing import Packing
from ravnest.collaboration.shares import Division
from ravnest.collaboration.transfers import Form, pieces
from ravnest.collaboration.visitor import Visitor
from ravnest.errors import InvalidInput
from ravnest.job.config import load_job
from tests.unit.ravnest.collaboration.jobs import job_in
from tests.unit.ravnest.collaboration.lines_twin import LinesTwin

HELPER, OTHER = 50, 51


class World:
    """Three volunteers, and machines that stand by, all of 1 MB/s."""

    def __init__(self, folder: Path, helpers: tuple[int, ...] = (HELPER,), share: float = 0.0) -> None:
        self.lines, self.told = LinesTwin(), list[str]()
        self.visitors = {line: Visitor(line, 0.0, agreed=True, joined=True, caught_up=True) for line in (1, 2, 3)}
        packing = Packing([Form("g", torch.float32, 4800), Form("s", torch.float32, 1)])
        self.epochs = Epochs(
            load_job(job_in(folder, spot_check_share=share)),
            packing,
            self.lines,  # type: ignore[arg-type]
            lambda: list(self.visitors.values()),
            bytes_per_s=1e6,
            tell=self.told.append,
            now=self.lines.now,
        )
        for line in helpers:
            self.follows(line)

    def follows(self, line: int, listens: str = "b:1") -> None:
        visitor = self.visitors[line] = Visitor(line, 0.0, agreed=True, joined=True, caught_up=True, follows=True)
        message = FollowMessage(proof=b"", code="", form="", listens=listens and f"{listens}{line}", bytes_per_s=1e6)
        self.epochs.follows(visitor, message)

    def reaches(self, line: int, epoch: int = 1, lost: int = 0) -> Helper | None:
        return self.epochs.reached(self.visitors[line], ReachedMessage(epoch=epoch, lost=lost))

    def begins(self) -> None:
        assert self.epochs.trouble() is None
        assert self.epochs.current is not None

    def passes(self, seconds: float) -> None:
        self.lines.now_s += seconds
        for line in self.epochs.helpers:
            self.epochs.heard(self.visitors[line])


@pytest.fixture(autouse=True)
def short_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfers, "PIECE_BYTES", 64)


def test_helpers_are_told_the_ranges_and_everyones_ticket_and_volunteers_their_own(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.begins()
    assert world.lines.said(HelpMessage) == [HelpMessage(epoch=1, part=1, bounds=(2400, 4800))]
    admitted = {
        one.visit: one.ticket for one in world.lines.said(AdmitMessage, HELPER) if isinstance(one, AdmitMessage)
    }
    assert len(set(admitted.values())) == 3
    for line, ticket in admitted.items():
        (told,) = world.lines.said(SharesMessage, line)
        assert told == SharesMessage(epoch=1, bounds=(2400, 4800), addresses=(f"b:1{HELPER}",), ticket=ticket)


def test_who_has_joined_and_lacks_averages_is_told_once_it_has_them(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.visitors[3].caught_up = False
    world.begins()
    assert not world.lines.said(SharesMessage, 3)
    world.epochs.joined(world.visitors[3])
    assert world.lines.said(SharesMessage, 3)


def test_an_epoch_is_used_once_everyone_has_reached_it_and_then_who_joins_is_not_counted_on(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.begins()
    epoch = world.epochs.current
    assert epoch is not None
    for line in (1, 2, 3):
        world.epochs.trouble()
        assert not epoch.usable
        assert world.epochs.counts_on(world.visitors[line])
        world.reaches(line)
    world.epochs.trouble()
    assert epoch.usable
    late = world.visitors[4] = Visitor(4, 0.0, agreed=True, joined=True, caught_up=True)
    world.epochs.joined(late)
    assert not world.epochs.counts_on(late)
    world.reaches(4)
    assert world.epochs.counts_on(late)


def test_who_is_not_reached_is_named_and_an_answer_for_another_epoch_says_nothing(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.begins()
    assert world.reaches(1, epoch=2, lost=1) is None
    found = world.reaches(1, lost=1)
    assert found is not None
    assert found.visitor.line == HELPER
    with pytest.raises(InvalidInput):
        world.reaches(1, lost=2)


def test_a_helper_that_was_given_up_rests_each_time_twice_as_long(tmp_path: Path) -> None:
    world = World(tmp_path)
    for time in range(3):
        world.begins()
        epoch = world.epochs.current
        assert epoch is not None
        world.epochs.give_up(epoch.helpers, "a test", 7)
        assert world.lines.said(WithoutMessage, 1)[-1] == WithoutMessage(epoch=time + 1, step=7)
        assert world.lines.said(WithoutMessage, HELPER)
        world.passes(REST_S * 2**time - PLAN_S - 1.0)
        world.epochs.trouble()
        assert world.epochs.current is None
        world.passes(2 * PLAN_S)


def test_silence_of_a_helper_is_trouble(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.begins()
    world.epochs.was_away()
    for _ in range(round(SILENT_S) + 1):
        assert world.epochs.trouble() is None
        world.lines.now_s += AWAY_S
        assert world.epochs.was_away() == 0.0
    found = world.epochs.trouble()
    assert found is not None
    assert "said nothing" in found[1]


def test_who_does_not_say_for_long_that_it_reaches_all_helpers_is_named_and_no_trouble(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.begins()
    world.reaches(1)
    world.reaches(2)
    assert world.epochs.unreached() == []
    world.passes(REACH_S + 1.0)
    assert world.epochs.trouble() is None
    (late,) = world.epochs.unreached()
    assert late.line not in (1, 2, HELPER)


def test_while_nothing_is_read_nobody_is_silent(tmp_path: Path) -> None:
    """Who serves evaluates, or writes its state: what helpers say meanwhile waits."""
    world = World(tmp_path)
    world.begins()
    world.lines.now_s = 10 * SILENT_S
    assert world.epochs.was_away() == 10 * SILENT_S - AWAY_S
    assert world.epochs.trouble() is None
    assert world.epochs.helpers[HELPER].heard_s <= world.lines.now_s


def test_a_helper_that_leaves_is_named_and_a_volunteer_that_leaves_is_taken_from_the_lists(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.begins()
    assert world.epochs.left(world.visitors[1]) is None
    assert world.lines.said(AdmitMessage, HELPER)[-1] == AdmitMessage(visit=1, ticket=b"")
    for line in (2, 3):
        world.reaches(line)
    world.epochs.trouble()
    assert world.epochs.current is not None
    assert world.epochs.current.usable
    lost = world.epochs.left(world.visitors[HELPER])
    assert lost is not None
    assert lost.visitor.line == HELPER
    assert world.epochs.helpers == {}


def test_steps_that_are_not_shorter_end_it(tmp_path: Path) -> None:
    world = World(tmp_path)
    for _ in range(3):
        world.epochs.step_took(10.0, shared=False)
    world.begins()
    for line in (1, 2, 3):
        world.reaches(line)
    world.epochs.trouble()
    assert world.epochs.step_took(10.0, shared=True) == []
    assert world.epochs.step_took(10.0, shared=True) == []
    assert [one.visitor.line for one in world.epochs.step_took(10.0, shared=True)] == [HELPER]


def test_nobody_is_asked_who_listens_nowhere_or_where_whole_gradients_are_needed(tmp_path: Path) -> None:
    world = World(tmp_path, helpers=())
    world.follows(HELPER, listens="")
    world.epochs.trouble()
    assert world.epochs.current is None
    checked = World(tmp_path / "checked", share=0.1)
    checked.epochs.trouble()
    assert checked.epochs.current is None
    assert any("spot_check_share" in line for line in checked.told)
    assert not checked.lines.said(HelpMessage)


@pytest.mark.parametrize("what", ["it is given up", "ranges change", "its volunteer leaves", "training ends"])
def test_what_is_handed_on_comes_to_nothing_when_nobody_waits_for_it_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """A helper that heard a piece of it behind the word would end its line, and all that waits counts against it."""
    world = World(tmp_path)
    world.begins()
    for line in (2, 3):
        world.reaches(line)
    assert world.epochs.relays(world.visitors[1], 0)
    assert world.epochs.trouble() is None
    present = world.epochs.current
    assert present is not None
    assert present.usable
    waiting, form = world.visitors[HELPER].outgoing, Form("g", torch.float32, 2400)
    relayed = present.visit_of(1)
    for step, visit in ((1, relayed), (2, None)):
        waiting.put(pieces("average", step, 0, [(form, torch.zeros(2400))]), visit=visit)
    assert list(waiting.due())
    if what == "it is given up":
        world.epochs.give_up([], "a test", 0)
        assert world.lines.said(WithoutMessage, HELPER)
    elif what == "ranges change":
        found = Division(Packing([form]), (1200, 2400)), [1]
        monkeypatch.setattr(epochs, "planned", lambda *_: found)
        world.epochs.step_took(1.0, shared=True)
        assert len(world.lines.said(HelpMessage, HELPER)) == 2
    elif what == "training ends":
        world.epochs.end()
    else:
        world.epochs.left(world.visitors[1])
        assert world.lines.said(AdmitMessage, HELPER)[-1] == AdmitMessage(visit=relayed, ticket=b"")
    assert len(waiting) == 1
    waiting.got(transfers.WINDOW)
    began, *_ = list(waiting.due())
    assert isinstance(began[0], TransferMessage)
    assert began[0].step == 2
