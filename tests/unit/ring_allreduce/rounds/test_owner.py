"""The rounds of a run: when they open, commit and fail."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ring_allreduce.errors import InvalidInput
from ring_allreduce.rounds.events import (
    CommitRound,
    FailRun,
    FinishRequested,
    MemberFinished,
    MemberHeld,
    MemberLost,
    OpenRound,
    RoundRequested,
    SamplesReported,
)
from ring_allreduce.rounds.owner import RoundOwner

RINGS = {"r0": ("a0", "b0"), "r1": ("a1", "b0")}


def owner(every=100, **options):
    return RoundOwner(RINGS, every, epoch=3, **options)


def run(machine, *events):
    return [instruction for event in events for instruction in machine.handle(event, 0.0)]


def finished(number):
    return [MemberFinished(number, member, ring) for ring, members in RINGS.items() for member in members]


def test_a_round_opens_each_time_the_fleet_has_made_enough_samples():
    machine = owner()
    assert run(machine, SamplesReported("a", 60)) == []
    assert run(machine, SamplesReported("b", 39)) == []
    assert run(machine, SamplesReported("b", 40)) == [OpenRound(1, 3, False)]
    assert run(machine, SamplesReported("b", 139)) == []
    assert run(machine, SamplesReported("a", 61)) == [OpenRound(2, 3, False)]


def test_a_report_that_was_overtaken_changes_nothing():
    machine = owner()
    assert run(machine, SamplesReported("a", 90), SamplesReported("a", 50), SamplesReported("b", 9)) == []
    assert run(machine, SamplesReported("b", 10)) == [OpenRound(1, 3, False)]


def test_a_leap_over_several_thresholds_opens_one_round():
    machine = owner()
    assert run(machine, SamplesReported("a", 350)) == [OpenRound(1, 3, False)]
    assert run(machine, SamplesReported("a", 399)) == []
    assert run(machine, SamplesReported("a", 400)) == [OpenRound(2, 3, False)]


@pytest.mark.parametrize("max_lag", [1, 3])
def test_beyond_the_round_at_which_members_wait_none_opens(max_lag):
    machine = owner(max_lag=max_lag)
    opened = run(machine, *(SamplesReported("a", 100 * i) for i in range(1, 301)))
    assert opened == [OpenRound(i, 3, False) for i in range(1, max_lag + 2)]
    assert (machine.opened, machine.committed) == (max_lag + 1, 0)


def test_a_commit_that_makes_room_opens_one_round_for_all_that_was_passed_meanwhile():
    machine = owner()
    run(machine, *(SamplesReported("a", 100 * i) for i in range(1, 6)))
    assert run(machine, *finished(1)) == [CommitRound(1, 3), OpenRound(3, 3, False)]
    assert run(machine, *finished(2)) == [CommitRound(2, 3)]
    assert run(machine, SamplesReported("a", 599)) == []
    assert run(machine, SamplesReported("a", 600)) == [OpenRound(4, 3, False)]


def test_the_final_round_opens_whatever_is_open_and_no_other_after_it():
    machine = owner()
    run(machine, *(SamplesReported("a", 100 * i) for i in range(1, 6)))
    assert run(machine, FinishRequested()) == [OpenRound(3, 3, True)]
    reports = [report for i in (1, 2, 3) for report in finished(i)]
    assert run(machine, *reports) == [CommitRound(i, 3) for i in (1, 2, 3)]
    assert machine.finished


def test_a_round_commits_over_all_rings_at_once():
    machine = owner()
    run(machine, SamplesReported("a", 100))
    *first, last = finished(1)
    assert run(machine, *first) == []
    assert run(machine, first[0]) == [], "a repeated report"
    assert run(machine, last) == [CommitRound(1, 3)]
    assert run(machine, last) == []


def test_rounds_commit_in_order():
    machine = owner()
    run(machine, SamplesReported("a", 100), SamplesReported("a", 200))
    assert run(machine, *finished(2)) == []
    assert run(machine, *finished(1)) == [CommitRound(1, 3), CommitRound(2, 3)]


def test_the_end_opens_one_last_round():
    machine = owner()
    assert run(machine, SamplesReported("a", 5), FinishRequested()) == [OpenRound(1, 3, True)]
    assert run(machine, FinishRequested(), SamplesReported("a", 500)) == []
    assert not machine.finished
    assert run(machine, *finished(1)) == [CommitRound(1, 3)]
    assert machine.finished


def test_the_end_of_a_run_without_samples_needs_no_round():
    machine = owner()
    assert run(machine, FinishRequested()) == []
    assert machine.finished


def test_a_lost_member_fails_the_run_once_and_for_all():
    machine = owner()
    run(machine, SamplesReported("a", 100))
    assert run(machine, MemberLost("a1", "its process was killed")) == [FailRun("lost 'a1': its process was killed")]
    assert run(machine, MemberLost("b0", "too"), *finished(1), FinishRequested()) == []
    assert not machine.finished


@pytest.mark.parametrize(
    "event", [MemberFinished(1, "a0", "r1"), MemberFinished(1, "x", "r0"), MemberFinished(2, "a0", "r0")]
)
def test_a_report_that_contradicts_the_plan_fails_the_run(event):
    machine = owner()
    run(machine, SamplesReported("a", 100))
    (failed,) = run(machine, event)
    assert isinstance(failed, FailRun)
    assert event.member in failed.reason


@pytest.mark.parametrize(
    "arguments",
    [(RINGS, 0), ({"r": ()}, 1), ({"r": ("a", "a")}, 1), (RINGS, 1, 0, 0)],
    ids=["samples", "empty", "twice", "lag"],
)
def test_refuses_impossible_plans(arguments):
    rings, every, *rest = arguments
    with pytest.raises(InvalidInput):
        RoundOwner(rings, every, **dict(zip(["epoch", "max_lag"], rest, strict=False)))


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 8))
def test_any_order_of_reports_commits_every_round_once_and_in_order(seed, rounds):
    machine = owner(max_lag=8)
    run(machine, *(SamplesReported("a", 100 * i) for i in range(1, rounds + 1)))
    reports = [report for i in range(1, rounds + 1) for report in finished(i)]
    reports += random.Random(seed).choices(reports, k=5)
    random.Random(seed).shuffle(reports)
    assert run(machine, *reports) == [CommitRound(i, 3) for i in range(1, rounds + 1)]


@settings(max_examples=200, deadline=None)
@given(st.data(), st.integers(1, 3), st.integers(1, 300))
def test_under_any_order_few_rounds_are_open_and_the_run_never_gets_stuck(data, max_lag, every):
    """Reports and finishes in any order: the bound holds, and whatever is open at the end can be finished."""
    machine = owner(every, max_lag=max_lag)
    samples, pending, instructions = {"a": 0, "b": 0}, [], []

    def tell(event):
        answer = machine.handle(event, 0.0)
        opened = [instruction for instruction in answer if isinstance(instruction, OpenRound)]
        pending.extend(report for one in opened for report in finished(one.round))
        instructions.extend(answer)
        last_is_final = any(one.final for one in instructions if isinstance(one, OpenRound))
        assert machine.opened - machine.committed <= max_lag + 1 + last_is_final

    for step in data.draw(st.lists(st.integers(0, 2**16), max_size=60), label="steps"):
        if step % 2 and pending:
            tell(pending.pop(step // 2 % len(pending)))
        else:
            cluster = "ab"[step // 2 % 2]
            samples[cluster] += step // 4 % 400
            tell(SamplesReported(cluster, samples[cluster]))
    # Once what is open is finished, a threshold that was passed has its round, and the next one opens in time.
    while pending:
        tell(pending.pop(0))
    assert machine.opened == machine.committed
    before = machine.opened
    tell(SamplesReported("a", samples["a"] + every))
    assert machine.opened == before + 1
    tell(FinishRequested())
    while pending:
        tell(pending.pop())
    assert machine.finished
    commits = [one.round for one in instructions if isinstance(one, CommitRound)]
    assert commits == list(range(1, machine.opened + 1))
    assert not any(isinstance(one, FailRun) for one in instructions)


def test_a_run_that_reforms_goes_on_without_a_lost_cluster():
    machine = owner(on_loss="reform", clusters={"a0": "a", "a1": "a", "b0": "b"})
    assert run(machine, SamplesReported("a", 100)) == [OpenRound(1, 3, False)]
    *told, reform = run(machine, MemberLost("a0", "killed"))
    assert [one.member for one in told] == ["a0", "a1"]
    assert (reform.epoch, reform.rings) == (4, {"r0": ("b0",), "r1": ("b0",)})
    (resume,) = run(machine, MemberHeld(4, "b0"))
    assert resume.kept == ()
    done = run(machine, MemberFinished(1, "b0", "r0", 4), MemberFinished(1, "b0", "r1", 4))
    assert done == [CommitRound(1, 4)]
    assert machine.epoch == 4
    assert run(machine, SamplesReported("b", 100)) == [OpenRound(2, 4, False)]
    # Nobody is left: the run ends, and nothing more opens.
    *_, failed = run(machine, MemberLost("b0", "killed"))
    assert isinstance(failed, FailRun)
    assert run(machine, SamplesReported("b", 1000), FinishRequested()) == []


def test_a_round_that_is_requested_opens_at_once_or_as_soon_as_the_lag_permits():
    machine = owner()
    assert run(machine, RoundRequested()) == [], "nobody has made anything"
    assert run(machine, SamplesReported("a", 10), RoundRequested()) == [OpenRound(1, 3, final=False)]
    assert run(machine, SamplesReported("a", 20)) == [], "it was one round"
    assert run(machine, RoundRequested(), RoundRequested()) == [OpenRound(2, 3, final=False)]
    out = run(machine, *finished(1))
    assert out == [CommitRound(1, 3), OpenRound(3, 3, final=False)]
    assert run(machine, SamplesReported("a", 90), *finished(2)) == [CommitRound(2, 3)]
