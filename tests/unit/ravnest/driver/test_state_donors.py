"""Orders to stages that join. Whole runs: test_in_process_rejoining.py; who is chosen: recovery/test_donors.py."""

import pytest

from ravnest.driver.instructions import FindDonors, ReformRings
from ravnest.driver.run_rings import RunRings
from ravnest.driver.state_donors import CHECKPOINT, StateDonors
from ravnest.stage import donor_messages as dm
from ravnest.stage import messages as m
from ring_allreduce.transport import InProcessNetwork
from tests.support.local import setups_of, tiny_job


class Bench:
    """c0 and c1 train, and c2 has joined; each is one stage, in the same ring."""

    def __init__(self):
        setups, plan = setups_of(tiny_job(), parts=(1, 1, 1))
        network = InProcessNetwork()
        driver = network.endpoint(m.DRIVER, m.codec())
        self.stages = {name: network.endpoint(name, m.codec()) for name in setups}
        network.connect_all()
        self.rings = RunRings(plan, setups)
        self.reform("c2")
        self.restored = []
        self.donors = StateDonors(self.rings, driver, self.restored.append)
        self.donors.find(FindDonors("c2", ("c2.s0",)), 10.0)

    def reform(self, *following, lost=()):
        names = tuple(name for name in self.stages if name not in lost)
        self.rings.reform(ReformRings(1, {"0": names}, 0, lost, following))

    def told(self, stage):
        return [each.message.sources for each in self.stages[stage].poll(0.0)]


@pytest.fixture
def bench():
    return Bench()


def test_a_stage_is_told_of_one_donor_that_trains_and_of_another_when_that_fails(bench):
    assert bench.donors.turn(10.0) == []
    (((ring, first),),) = bench.told("c2.s0")
    assert ring == 0
    assert first in ("c0.s0", "c1.s0")
    assert bench.donors.turn(11.0) == []
    assert bench.told("c2.s0") == []
    bench.donors.take("c2.s0", dm.SourceFailed(ring=0, donor=first, reason="it is slow"), 12.0)
    bench.donors.turn(12.0)
    (((_, other),),) = bench.told("c2.s0")
    assert {first, other} == {"c0.s0", "c1.s0"}
    bench.donors.take("c2.s0", dm.SegmentTaken(ring=0, donor=other, bytes=99), 13.0)
    bench.donors.take("c2.s0", m.StageStarted(process_bytes=1), 14.0)
    (restored,) = bench.restored
    assert (restored.donors, restored.seconds) == ({other: 99}, 4.0)


def test_a_newcomer_that_holds_the_anchor_gives_it_until_it_is_lost(bench):
    bench.reform("c1", "c2")
    bench.donors.take("c1.s0", m.StageStarted(process_bytes=1), 11.0)
    bench.donors.turn(11.0)
    (((_, first),),) = bench.told("c2.s0")
    bench.donors.take("c2.s0", dm.SourceFailed(ring=0, donor=first, reason="it is slow"), 11.0)
    bench.donors.turn(11.0)
    (((_, second),),) = bench.told("c2.s0")
    assert {first, second} == {"c0.s0", "c1.s0"}
    bench.donors.lost([second])
    assert bench.donors.turn(12.0) == ["c2"]
    bench.donors.take("c2.s0", m.StageStarted(process_bytes=1), 20.0)
    (restored,) = bench.restored
    assert list(restored.donors) == [CHECKPOINT]
    assert restored.donors[CHECKPOINT] > 0


def test_a_newcomer_that_holds_nothing_gives_nothing(bench):
    bench.reform("c1", "c2")
    bench.donors.turn(11.0)
    assert bench.told("c2.s0") == [((0, "c0.s0"),)]


def test_a_lost_stage_that_says_late_that_it_holds_the_anchor_gives_nothing(bench):
    """Its cluster may have been cut otherwise since, so that the plan has no such stage any more."""
    bench.reform("c2", lost=["c1.s0"])
    for ghost in ("c1.s0", "c1.s9"):
        bench.donors.take(ghost, m.StageStarted(process_bytes=1), 11.0)
    bench.donors.turn(11.0)
    assert bench.told("c2.s0") == [((0, "c0.s0"),)]
    bench.reform("c1", "c2")  # it has joined again, with nothing in hand
    bench.donors.take("c2.s0", dm.SourceFailed(ring=0, donor="c0.s0", reason="it is slow"), 12.0)
    assert bench.donors.turn(12.0) == ["c2"]
    assert bench.told("c2.s0") == []
