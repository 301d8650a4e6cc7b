"""Which rounds are finished, which may come, and what a commit forgets."""

import torch

from ring_allreduce.ring.executor import RingContribution
from ring_allreduce.ring.uncommitted_rounds import RingResult, UncommittedRounds


def result(number, ring="r"):
    return RingResult(ring, number, torch.zeros(2), 1.0, ())


def test_a_round_is_closed_when_it_is_committed_or_whole_in_this_epoch():
    kept = UncommittedRounds(["r"], max_rounds=2, committed=3)
    kept.add(result(5), epoch=1)
    assert [kept.closed("r", number, 1) for number in (3, 4, 5, 6)] == [True, False, True, False]
    assert not kept.closed("r", 5, 2), "another member may have been told that it starts again"


def test_rounds_may_come_up_to_max_rounds_beyond_those_that_are_all_finished():
    kept = UncommittedRounds(["r", "q"], max_rounds=2, committed=0)
    assert kept.too_far("r", 2) is None
    assert kept.too_far("r", 3) == "more than 2 rounds ahead of round 0"
    kept.add(result(2), 0)
    assert kept.finished_to("r") == 0
    kept.add(result(1), 0)
    assert (kept.finished_to("r"), kept.finished_to("q")) == (2, 0)
    assert kept.too_far("r", 4) is None
    kept.forget("r", 1)
    assert kept.finished_to("r") == 0


def test_a_commit_forgets_up_to_its_round_in_all_rings_and_never_goes_back():
    kept = UncommittedRounds(["r", "q"], max_rounds=2, committed=0)
    for ring in "rq":
        for number in (1, 2):
            kept.contributions[ring, number] = RingContribution(torch.zeros(2), 1.0, ())
            kept.add(result(number, ring), 0)
    assert sorted((gone.ring, gone.round) for gone in kept.commit(1)) == [("q", 1), ("r", 1)]
    assert kept.holding() == sorted(kept.contributions) == [("q", 2), ("r", 2)]
    assert kept.whole("r", 1) is None
    assert kept.commit(0) == []
    assert kept.committed == 1
