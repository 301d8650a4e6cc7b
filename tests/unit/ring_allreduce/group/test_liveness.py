"""Who is gone, late or cut off: each rule, and who is to blame."""

import pytest

from ring_allreduce.errors import InvalidInput
from ring_allreduce.group.liveness import LATE_SIGNS, Report, Watch
from ring_allreduce.rounds.deadlines import Patience
from ring_allreduce.rounds.events import MemberLost, MemberSuspected

PATIENCE = Patience(alive_every_s=1.0, silence_floor_s=10.0, stall_floor_s=15.0)
RING = "abc"


def watch(members=RING):
    machine = Watch(PATIENCE)
    for member in members:
        machine.welcome(member, 0.0)
    return machine


def live(machine, reports, until_s, since_s=0.0, epoch=1, forming=()):
    """Signs of life each second; what was found by the end, and when."""
    now_s = since_s
    while now_s < until_s:
        now_s += 1.0
        for member, report in reports.items():
            machine.heard(member, now_s)
            machine.reported(member, report, now_s)
        found = machine.check(now_s, epoch, forming)
        if found:
            return found, now_s
    return [], now_s


def at(received, sent, waits_for, number=1, epoch=1):
    return Report(epoch, number, received, sent, waits_for)


def test_who_says_nothing_for_its_deadline_is_lost():
    machine = watch()
    found, when_s = live(machine, {member: Report() for member in "ac"}, 100.0)
    assert when_s == 11.0
    assert found == [MemberLost("b", "silent for 11.0 s (its deadline: 10.0 s)")]


def test_a_member_of_rare_signs_is_waited_for_longer():
    machine = watch("a")
    for now_s in range(100):
        if now_s % 8 == 0:
            machine.heard("a", float(now_s))
        machine.check(float(now_s), 1, ())
    assert live(machine, {}, 96.0 + 64.0, 99.0) == ([], 96.0 + 64.0)
    assert live(machine, {}, 96.0 + 66.0, 96.0 + 64.0)[0] != []


def test_a_dead_link_is_blamed_on_its_receiver_and_on_no_one_who_waits_in_turn():
    reports = {"a": at(6, 9, "c"), "b": at(4, 4, "a"), "c": at(4, 6, "b")}
    found, when_s = live(watch(), reports, 100.0)
    assert found == [MemberSuspected(1, "b", "nothing of what 'a' sends has reached 'b' for 16.0 s")]
    assert when_s == 17.0


def test_who_is_an_end_of_more_dead_links_is_blamed():
    reports = {"a": at(6, 9, "c"), "b": at(4, 8, "a"), "c": at(4, 6, "b")}
    ((suspected,), _) = live(watch(), reports, 100.0)
    assert suspected.member == "b"
    assert "'b'" in suspected.reason


@pytest.mark.parametrize("victim", RING)
def test_who_hears_nobody_or_is_heard_by_nobody_in_a_direct_exchange_is_blamed(victim):
    others = [member for member in RING if member != victim]
    deaf = {**{member: Report(1, 1, whole=True) for member in others}, victim: at(0, 2, others[0])}
    mute = {**{member: at(1, 2, victim) for member in others}, victim: Report(1, 1, whole=True)}
    for reports in (deaf, mute):
        ((suspected,), _) = live(watch(), reports, 100.0)
        assert suspected.member == victim


def test_who_waits_for_nobody_and_sends_nothing_is_blamed():
    reports = {"a": at(0, 4, ""), "b": at(4, 6, "a"), "c": at(6, 6, "b")}
    ((suspected,), _) = live(watch(), reports, 100.0)
    assert suspected == MemberSuspected(1, "a", "it has sent 'b' nothing for 16.0 s, though it waits for nobody")


def test_a_slow_member_is_never_suspected_as_long_as_chunks_arrive():
    machine, now_s = watch("ab"), 0.0
    for step in range(40):
        reports = {"a": at(step, step + 5, "b"), "b": at(step, step + 5, "a")}
        found, now_s = live(machine, reports, now_s + 12.0, now_s)
        assert found == []


def test_links_that_wait_for_who_has_not_called_are_not_dead():
    reports = {"a": Report(1, 0), "b": at(0, 4, "a"), "c": at(4, 4, "b")}
    found, _ = live(watch(), reports, 200.0)
    assert found == []


def test_the_beginning_of_an_epoch_begins_the_wait_anew():
    machine = watch("ab")
    reports = {"a": at(1, 5, "b"), "b": at(1, 5, "a")}
    found, now_s = live(machine, reports, 10.0)
    again = {"a": at(1, 5, "b", epoch=2), "b": at(1, 5, "a", epoch=2)}
    found, now_s = live(machine, again, now_s + 15.0, now_s, epoch=2)
    assert found == []
    found, _ = live(machine, again, now_s + 5.0, now_s, epoch=2)
    assert len(found) == 1


def test_who_has_not_called_when_anothers_time_is_up_is_late():
    machine = watch()
    reports = {"a": at(0, 4, "c"), "b": Report(1, 0), "c": at(0, 4, "a")}
    _, now_s = live(machine, reports, 5.0)
    machine.overdue("a", 1, 5.0, now_s)
    assert machine.check(now_s, 1, ()) == [], "b may have called since it was heard"
    found, _ = live(machine, reports, 100.0, now_s)
    assert found == [MemberLost("b", "it had not called average() for round 1 when 'a' had waited for 5.0 s")]


def test_who_says_nothing_when_anothers_time_is_up_is_late_too():
    machine = watch()
    reports = {"a": at(0, 4, "c"), "c": at(0, 4, "a")}
    _, now_s = live(machine, {**reports, "b": at(0, 4, "a")}, 5.0)
    machine.overdue("a", 1, 5.0, now_s)
    found, when_s = live(machine, reports, 100.0, now_s)
    assert [event.member for event in found] == ["b"]
    assert when_s == now_s + LATE_SIGNS + 1
    assert found[0].reason == "silent for 4.0 s, while 'a' waited for round 1"


def test_nobody_is_late_for_a_round_that_was_committed():
    machine = watch()
    reports = {member: Report(1, 0) for member in RING}
    _, now_s = live(machine, reports, 5.0)
    machine.overdue("a", 1, 5.0, now_s)
    machine.committed(1)
    assert live(machine, reports, 30.0, now_s)[0] == []


def test_who_does_not_answer_the_beginning_of_an_epoch_inside_average_is_lost():
    machine = watch()
    machine.epoch_began(0.0)
    reports = {"a": at(0, 0, ""), "b": Report(1, 0), "c": at(0, 0, "")}
    found, when_s = live(machine, reports, 100.0, epoch=2, forming=("a", "b"))
    assert found == [MemberLost("a", "inside average(), it does not answer")]
    assert when_s == 16.0


def test_who_is_forgotten_is_not_judged():
    machine = watch()
    machine.overdue("b", 1, 5.0, 0.0)
    machine.forget("b")
    assert live(machine, {member: Report() for member in "ac"}, 40.0)[0] == []


@pytest.mark.parametrize("alive_every_s", [0.0, -1.0, 10.0])
def test_patience_that_makes_no_sense_is_refused(alive_every_s):
    with pytest.raises(InvalidInput):
        Patience(alive_every_s=alive_every_s)


def test_what_a_member_says_of_its_own_time_is_held_against_its_signs_of_life():
    machine = watch()
    reports = {"a": at(0, 4, "c"), "b": Report(1, 0), "c": at(0, 4, "a")}
    _, now_s = live(machine, reports, 2.0)
    machine.overdue("a", 1, 0.001, now_s)
    found, when_s = live(machine, reports, 100.0, now_s)
    assert [event.member for event in found] == ["b"]
    assert when_s == 1.0 + LATE_SIGNS, "no time-out is shorter than some signs of life from inside average()"
    machine = watch()
    live(machine, reports, 2.0)
    machine.overdue("a", 1, 12.0, 2.0)
    _, when_s = live(machine, reports, 100.0, 2.0)
    assert when_s == 1.0 + 12.0 - LATE_SIGNS, "its first sign may be a little late, no more"
    machine = watch()
    machine.overdue("a", 1, 0.0, 0.0)
    assert live(machine, {member: Report(1, 0) for member in RING}, 50.0) == ([], 50.0), "it is not inside at all"


def test_time_during_which_the_watch_stood_still_counts_for_nobody():
    machine = watch()
    reports = {"a": at(1, 5, "c"), "b": at(1, 5, "a"), "c": Report(1, 0)}
    _, now_s = live(machine, reports, 5.0)
    machine.overdue("a", 1, 12.0, now_s)
    assert machine.check(now_s + 1000.0, 1, ()) == []
    for member in RING:
        machine.heard(member, now_s + 1000.0)
    found, when_s = live(machine, reports, now_s + 1100.0, now_s + 1000.0)
    assert [event.member for event in found] == ["c"]
    assert when_s == pytest.approx(now_s + 1000.0 + 5.0, abs=1.0), "12 s less 3 signs, of which 4 had passed"
