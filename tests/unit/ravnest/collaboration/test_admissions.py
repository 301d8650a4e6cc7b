"""From which machine who joins takes the state; the real programs play it in test_admissions_played.py."""

from pathlib import Path

import pytest

from ravnest.collaboration.admissions import LEAST_BYTES_PER_S, REST_S, TAKE_S, Admissions, Uplink, freest
from ravnest.collaboration.backbone_state import BackboneState
from ravnest.collaboration.epochs import SILENT_S, Epochs
from ravnest.collaboration.messages import (
    FollowMessage,
    GiveMessage,
    LedgerMessage,
    TakeMessage,
    TookMessage,
)
from ravnest.collaboration.pump import STATES_AT_ONCE
from ravnest.collaboration.visitor import Visitor
from ravnest.errors import InvalidInput
from ravnest.job.config import load_job
from tests.unit.ravnest.collaboration.jobs import job_in
from tests.unit.ravnest.collaboration.lines_twin import LinesTwin

HELPER, OTHER = 50, 51


@pytest.mark.parametrize(
    ("own", "others", "at"),
    [
        (Uplink(0, 10.0), [], 0),
        (Uplink(0, 10.0), [Uplink(0, 10.0), Uplink(0, 10.0)], 1),
        (Uplink(0, 10.0), [Uplink(1, 10.0), Uplink(0, 10.0)], 2),
        (Uplink(0, 10.0), [Uplink(1, 10.0)], 0),
        (Uplink(1, 10.0), [Uplink(1, 10.0)], 1),
        (Uplink(0, 10.0), [Uplink(3, 100.0)], 1),
        (Uplink(0, 100.0), [Uplink(0, 10.0)], 0),
        (Uplink(0, 0.0), [Uplink(0, 0.0)], 1),
        (Uplink(1, 100.0), [Uplink(1, 0.0)], 1),
        (Uplink(0, 100.0), [Uplink(1, 0.0)], 0),
        (None, [Uplink(5, 0.0), Uplink(4, 10.0)], 2),
        (None, [], None),
        (Uplink(STATES_AT_ONCE, 10.0), [Uplink(STATES_AT_ONCE, 1000.0)], None),
    ],
)
def test_the_uplink_with_the_fewest_states_for_its_rate_is_taken(
    own: Uplink | None, others: list[Uplink], at: int | None
) -> None:
    assert freest(own, others) == at


class World:
    """A serving machine, and two that stand by, all of 1 MB/s."""

    def __init__(self, folder: Path, *, rank: int | None = None) -> None:
        path = job_in(folder / "job", gradient_rank=rank)
        self.lines, self.told = LinesTwin(), list[str]()
        self.kept = BackboneState(
            load_job(path), path, folder / "out", resume=False, tell=self.told.append, now=self.lines.now
        )
        self.visitors: dict[int, Visitor] = {}
        self.epochs = Epochs(
            self.kept.trainer.job,
            self.kept.trainer.packing,
            self.lines,  # type: ignore[arg-type]
            lambda: list(self.visitors.values()),
            bytes_per_s=1e6,
            tell=self.told.append,
            now=self.lines.now,
        )
        self.admissions = Admissions(
            self.kept, self.epochs, self.visitors, self.lines, self.told.append, self.lines.now  # type: ignore[arg-type]
        )  # fmt: skip
        for line in (HELPER, OTHER):
            helper = self.visitors[line] = Visitor(line, 0.0, agreed=True, joined=True, follows=True, caught_up=True)
            self.epochs.follows(
                helper, FollowMessage(proof=b"", code="", form="", listens=f"b:{line}", bytes_per_s=1e6)
            )

    def joins(self, line: int, *, own: bool = True, follows: bool = False) -> Visitor:
        visitor = self.visitors.setdefault(line, Visitor(line, 0.0, name=f"v{line}", agreed=True, follows=follows))
        self.admissions.join(visitor, own)
        return visitor

    def gives(self, line: int) -> list[int]:
        return [one.visit for one in self.lines.said(GiveMessage, line) if isinstance(one, GiveMessage) and one.ticket]


def test_who_joins_is_spread_over_all_machines_and_beyond_that_waits(tmp_path: Path) -> None:
    world = World(tmp_path)
    joined = [world.joins(line) for line in range(3 * STATES_AT_ONCE + 1)]
    assert len(world.gives(HELPER)) == len(world.gives(OTHER)) == STATES_AT_ONCE
    assert sum(one.takes_state for one in joined) == STATES_AT_ONCE
    assert not set(world.gives(HELPER)) & set(world.gives(OTHER))
    assert sum(one.takes_elsewhere for one in joined[:3]) == 2, "not one machine after the other"
    assert not joined[-1].joined
    (told,) = world.lines.said(TakeMessage, world.gives(HELPER)[0])
    (given, *_) = world.lines.said(GiveMessage, HELPER)
    assert isinstance(told, TakeMessage)
    assert isinstance(given, GiveMessage)
    assert (told.address, told.ticket, told.step) == (f"b:{HELPER}", given.ticket, given.step)
    assert not any(one.holds_state for one in joined)
    first = world.visitors[world.gives(OTHER)[0]]
    with pytest.raises(InvalidInput, match="step 1 at step 0"):
        world.admissions.took(first, TookMessage(step=1))
    world.admissions.took(first, TookMessage(step=0))
    assert world.joins(3 * STATES_AT_ONCE).takes_elsewhere
    assert world.gives(OTHER)[-1] == 3 * STATES_AT_ONCE


def test_while_this_machine_s_uplink_carries_averages_others_hand_over(tmp_path: Path) -> None:
    world = World(tmp_path)
    for line in range(2 * STATES_AT_ONCE):
        assert world.joins(line, own=False).takes_elsewhere
    assert not world.joins(99, own=False).joined


def test_in_low_rank_too_the_state_is_taken_elsewhere(tmp_path: Path) -> None:
    world = World(tmp_path, rank=2)
    assert world.joins(1).takes_elsewhere


def test_a_machine_that_is_silent_or_has_no_state_yet_is_named_to_nobody(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.visitors[OTHER].caught_up = False
    assert world.joins(1).takes_elsewhere
    assert world.gives(HELPER) == [1]
    world.lines.now_s = SILENT_S + 1.0
    assert world.joins(2).takes_state
    assert world.lines.said(GiveMessage, OTHER) == []


def test_another_backbone_machine_takes_it_here_and_the_people_too(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.kept.last_line = b'{"step": 7, "samples_in_all": 480}\n'
    assert world.joins(60, follows=True).takes_state
    (told,) = world.lines.said(LedgerMessage, 60)
    assert told == LedgerMessage(entry=world.kept.last_line, people=world.kept.people.text().encode())


def test_who_has_it_says_so_and_may_lack_averages(tmp_path: Path) -> None:
    world = World(tmp_path)
    one = world.joins(1)
    world.admissions.took(one, TookMessage(step=0))
    assert one.holds_state
    assert not one.caught_up


def test_who_holds_too_many_averages_takes_it_here_and_nobody_is_to_blame(tmp_path: Path) -> None:
    world = World(tmp_path)
    one = world.joins(1)
    one.outgoing.put(iter([]))
    (line,) = [line for line in (HELPER, OTHER) if world.gives(line)]
    world.admissions.took(one, TookMessage(step=None, slow=True))
    assert one.takes_state
    assert len(one.outgoing) == 1, "the state has all averages"
    for visit in range(2, 2 + STATES_AT_ONCE):
        world.joins(visit, own=False)
    assert len(world.gives(line)) > 1


def test_who_got_none_takes_it_here_and_that_machine_rests(tmp_path: Path) -> None:
    world = World(tmp_path)
    one = world.joins(1)
    (line,) = [line for line in (HELPER, OTHER) if world.gives(line)]
    world.admissions.took(one, TookMessage(step=None))
    assert one.takes_state
    assert len(one.outgoing) == 1
    assert world.lines.said(GiveMessage, line)[-1] == GiveMessage(visit=1, ticket=b"", step=0)
    with pytest.raises(InvalidInput):
        world.admissions.took(one, TookMessage(step=None))
    for visit in range(2, 2 + STATES_AT_ONCE):
        world.joins(visit, own=False)
    assert world.gives(line) == [1]
    world.lines.now_s = REST_S
    for helper in (HELPER, OTHER):
        world.epochs.heard(world.visitors[helper])
    world.joins(99, own=False)
    assert world.gives(line) == [1, 99]


def test_who_leaves_is_forgotten(tmp_path: Path) -> None:
    world = World(tmp_path)
    one = world.joins(1)
    for _ in range(2):
        world.admissions.left(one)
    assert [message for message in world.lines.said(GiveMessage) if message != world.lines.said(GiveMessage)[0]] == [
        GiveMessage(visit=1, ticket=b"", step=0)
    ]
    assert world.joins(2).takes_elsewhere
    assert world.joins(3).takes_elsewhere, "its place is free"


def test_who_does_not_take_the_state_is_late_wherever_it_was_to_take_it(tmp_path: Path) -> None:
    world = World(tmp_path)
    elsewhere, there, here, has_it = (world.joins(line) for line in (1, 2, 3, 4))
    assert [one.takes_state for one in (elsewhere, there, here, has_it)] == [False, False, True, False]
    gradient = world.kept.trainer.packing.summed[0].elements
    world.lines.now_s = TAKE_S + 12 * gradient / LEAST_BYTES_PER_S
    world.admissions.took(there, TookMessage(step=None))
    world.admissions.took(has_it, TookMessage(step=0))
    assert not any(world.admissions.is_late(one) for one in (elsewhere, there, here, has_it))
    world.lines.now_s += 1.0
    assert [world.admissions.is_late(one) for one in (elsewhere, there, here, has_it)] == [True, False, True, False]
    world.lines.now_s += TAKE_S + 12 * gradient / LEAST_BYTES_PER_S
    assert world.admissions.is_late(there)


def test_at_the_end_all_take_it_here(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.admissions.end()
    assert world.joins(1).takes_state
