"""What a member does when an epoch begins. Whole crews, in any order of events: test_membership.py."""

from ring_allreduce.rounds import events as ev
from ring_allreduce.rounds.member import EpochMember

RINGS = {"r": ("a", "b"), "s": ("a", "b")}
FIRST = {"a": 1, "b": 1}


def run(machine, *events):
    return [order for event in events for order in machine.handle(event)]


def reform(epoch, committed=0):
    return ev.Reform(epoch, RINGS, committed, {})


def started(me="a"):
    machine = EpochMember(me)
    run(machine, reform(1), ev.Resume(1, (), (), FIRST))
    return machine


def finished(*rounds):
    return [ev.RingFinished(ring, number) for number in rounds for ring in RINGS]


def test_it_contributes_only_when_the_epoch_has_begun():
    machine = EpochMember("a")
    assert machine.next_round is None
    assert run(machine, reform(1)) == [ev.ReformRings(1, RINGS), ev.ReportHeld(1, ())]
    assert machine.next_round is None
    assert run(machine, ev.Resume(1, (), (), FIRST)) == []
    assert (machine.next_round, machine.epoch) == (1, 1)


def test_it_reports_what_is_whole_and_merges_what_is_committed_once():
    machine = started()
    reports = [ev.ReportFinished("r", 1, 1), ev.ReportFinished("s", 1, 1)]
    assert run(machine, ev.RoundContributed(1), *finished(1)) == reports
    assert run(machine, ev.CommitRound(1, 1), ev.CommitRound(1, 1)) == [ev.MergeRound(1)]
    assert run(machine, *finished(1)) == [], "too late"
    assert machine.next_round == 2


def test_it_tells_what_it_holds_and_starts_again_what_is_not_kept():
    machine = started()
    run(machine, ev.RoundContributed(1), ev.RoundContributed(2), *finished(2), ev.RingFinished("r", 1))
    held = (("r", 1), ("r", 2), ("s", 2))
    assert run(machine, reform(2)) == [ev.ReformRings(2, RINGS), ev.ReportHeld(2, held)]
    assert run(machine, ev.RingFinished("s", 1)) == [], "of the epoch before"
    assert run(machine, ev.Resume(1, (), (), FIRST)) == [], "of the epoch before"
    assert machine.next_round is None
    assert run(machine, ev.Resume(2, (2,), (), FIRST)) == [ev.RestartRound(1)]
    assert run(machine, ev.Resume(2, (), (), FIRST)) == [], "twice"
    assert run(machine, reform(3))[1] == ev.ReportHeld(3, (("r", 2), ("s", 2))), "round 1 is whole no more"
    assert run(machine, reform(2), reform(3)) == [], "old, and twice"


def test_it_hands_on_what_it_is_told_to_and_takes_what_it_misses():
    orders = (("r", 1, "a", ("b",)), ("s", 1, "b", ("a",)))
    holder, other = started(), started("b")
    for machine in (holder, other):
        run(machine, ev.RoundContributed(1), reform(2))
    resume = ev.Resume(2, (1,), orders, FIRST)
    assert run(holder, resume) == [ev.SendAverage("r", 1, ("b",)), ev.AcceptAverage("s", 1, "b")]
    assert run(other, resume) == [ev.AcceptAverage("r", 1, "a"), ev.SendAverage("s", 1, ("a",))]


def test_a_commit_that_it_did_not_hear_of_comes_with_the_next_epoch():
    machine = started()
    run(machine, ev.RoundContributed(1), *finished(1))
    merge, *_, held = run(machine, reform(2, committed=1))
    assert (merge, held) == (ev.MergeRound(1), ev.ReportHeld(2, ()))
    assert run(machine, ev.Resume(2, (), (), FIRST)) == []
    assert machine.next_round == 2


def test_a_newcomer_waits_for_its_first_round_and_merges_none_before_it():
    machine = EpochMember("b")
    run(machine, reform(5, committed=3), ev.Resume(5, (4,), (), {"a": 1, "b": 5}))
    assert machine.next_round is None
    assert run(machine, ev.CommitRound(4, 5)) == []
    assert machine.next_round == 5
