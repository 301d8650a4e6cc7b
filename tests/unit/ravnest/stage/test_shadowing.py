"""One warm spare, with members and a driver that the test plays. Whole runs: driver/test_warm_spares.py."""

from dataclasses import replace

import pytest
import torch

from ravnest.errors import NodeLost
from ravnest.stage import messages as m
from ravnest.stage import shadow_messages as shm
from ravnest.stage.assembling import shadowing
from ravnest.stage.shadowing import AVERAGE_FLOOR_S, LAST_FLOOR_S, QUIET_S, divided
from ring_allreduce.ring import FollowedMissing, FollowedTaken
from ring_allreduce.ring.messages import FollowedPiece
from ring_allreduce.rounds import SILENCE_FLOOR_S
from ring_allreduce.transport import InProcessNetwork, Lane
from tests.support.local import setups_of, tiny_job


class Bench:
    """The warm spare of c0.s1; c1.s0 is a member of its rings."""

    def __init__(self):
        torch.set_num_threads(1)
        self.now_s = 0.0
        setups, _ = setups_of(tiny_job(), parts=(2, 1))
        successor = setups["c0.s1"]
        self.setup = replace(successor, place=replace(successor.place, cluster="~c0"), successor=successor)
        network = InProcessNetwork()
        self.driver, self.member, endpoint = (
            network.endpoint(name, m.codec()) for name in (m.DRIVER, "c1.s0", "~c0.s1")
        )
        network.connect_all()
        self.stage = shadowing(self.setup, endpoint, None, lambda: self.now_s)
        self.tell(shm.FollowFrom(epoch=1, round=3, peers=()))

    def tell(self, *messages):
        for message in messages:
            self.driver.send("~c0.s1", Lane.PIPELINE, message)
        self.stage.turn(0.0)

    def pass_s(self, seconds):
        """Time passes, in which the driver is heard."""
        for _ in range(int(seconds) + 1):
            self.now_s += 1.0
            self.tell(m.Alive())

    def heard(self, end, kind):
        return [each.message for each in end.poll(0.0) if isinstance(each.message, kind)]


def test_a_committed_average_that_stays_away_makes_it_begin_anew():
    bench = Bench()
    bench.tell(m.RoundCommittedMessage(round=4))
    bench.pass_s(AVERAGE_FLOOR_S - 2)
    assert bench.heard(bench.driver, shm.FellBehind) == []
    bench.pass_s(4)
    (told,) = bench.heard(bench.driver, shm.FellBehind)
    assert "round 4" in told.reason
    bench.pass_s(AVERAGE_FLOOR_S + 4)
    assert bench.heard(bench.driver, shm.FellBehind) == [], "it waits for the driver's word"


def test_who_takes_a_place_waits_for_the_last_average_for_a_moment_only():
    bench = Bench()
    bench.tell(shm.TakePlace(epoch=2, round=4))
    assert not bench.stage.stopped
    bench.pass_s(LAST_FLOOR_S + 1)
    assert bench.stage.stopped
    assert bench.stage.takes_place == shm.TakePlace(epoch=2, round=4)
    assert bench.heard(bench.driver, shm.FellBehind) == []


@pytest.mark.parametrize("come", [0, 3])
def test_who_takes_a_place_asks_those_who_live_for_what_it_lacks(come):
    bench = Bench()
    if come:
        bench.member.send("~c0.s1", Lane.BULK, piece(bench, start=0, stop=come), [torch.ones(come)])
    bench.tell(shm.TakePlace(epoch=2, round=4))
    assert bench.heard(bench.member, FollowedMissing) == [], "more may be on its way"
    bench.now_s += QUIET_S
    bench.tell(m.Alive())
    asked = {each.ring: each for each in bench.heard(bench.member, FollowedMissing)}
    assert asked.keys() == {spec.name for segment in bench.setup.segments for spec in segment.rings}
    progress = bench.setup.segments[0].progress
    assert asked[progress.name].spans == ((come, progress.elements),)
    bench.pass_s(1)
    assert bench.heard(bench.member, FollowedMissing) == [], "once"


@pytest.mark.parametrize(
    ("spans", "parts", "expected"),
    [
        ([(0, 10)], 3, [((0, 4),), ((4, 8),), ((8, 10),)]),
        ([(0, 2), (5, 9)], 2, [((0, 2), (5, 6)), ((6, 9),)]),
        ([], 2, [(), ()]),
        ([(0, 1)], 3, [((0, 1),), (), ()]),
    ],
)
def test_what_is_missing_is_divided_among_those_who_are_asked(spans, parts, expected):
    assert divided(spans, parts) == expected


def test_who_has_all_that_is_committed_takes_the_place_at_once():
    bench = Bench()
    bench.tell(shm.TakePlace(epoch=2, round=3))
    assert bench.stage.stopped


def test_garbage_of_a_member_makes_it_begin_anew_and_not_end():
    bench = Bench()
    bench.member.send("~c0.s1", Lane.BULK, piece(bench, stop=10**9), [torch.ones(3)])
    bench.stage.turn(0.0)
    (told,) = bench.heard(bench.driver, shm.FellBehind)
    assert "c1.s0" in told.reason


def test_it_ends_with_its_driver():
    bench = Bench()
    for _ in range(int(SILENCE_FLOOR_S)):
        bench.now_s += 1.0
        bench.stage.turn(0.0)
    bench.now_s += 1.0
    with pytest.raises(NodeLost, match="the driver has been silent"):
        bench.stage.turn(0.0)


def test_it_stops_when_it_is_told_to():
    bench = Bench()
    bench.tell(m.Stop())
    assert bench.stage.stopped
    assert bench.stage.takes_place is None


def piece(bench, *, start=0, stop=3):
    ring = bench.setup.segments[0].progress.name
    return FollowedPiece(ring=ring, round=4, start=start, stop=stop)


def test_nobody_is_told_that_what_is_missing_was_taken():
    bench = Bench()
    bench.member.send("~c0.s1", Lane.BULK, piece(bench), [torch.ones(3)])
    bench.tell(m.RoundCommittedMessage(round=4))
    assert bench.heard(bench.member, FollowedTaken) == []
