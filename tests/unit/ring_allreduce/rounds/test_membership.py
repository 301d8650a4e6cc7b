"""Who is in, which epoch it is, what is kept and what starts again; and that no order of events breaks it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ring_allreduce.errors import InvalidInput
from ring_allreduce.rounds import events as ev
from ring_allreduce.rounds.membership import RoundMembership
from tests.unit.ring_allreduce.crew import Crew

RINGS = {"r0": ("a0", "b0", "c0"), "r1": ("a1", "b0", "c1")}
CLUSTERS = {"a0": "a", "a1": "a", "b0": "b", "c0": "c", "c1": "c"}


def owner(**options):
    machine = RoundMembership(RINGS, **{"ahead": 2, "clusters": CLUSTERS, **options})
    machine.begin()
    return machine


def answer(machine, **holding):
    """All answer the last Reform; those named hold something."""
    out = []
    for member in machine.members:
        out += machine.handle(ev.MemberHeld(machine.epoch, member, holding.get(member, ())))
    return out


def finish(machine, number, epoch=None):
    out = []
    for ring, members in RINGS.items():
        for member in members:
            if member in machine.members:
                out += machine.handle(ev.MemberFinished(number, member, ring, epoch))
    return out


def test_an_epoch_begins_when_everybody_is_in_it():
    machine = RoundMembership(RINGS, ahead=1)
    (reform,) = machine.begin()
    assert reform == ev.Reform(1, RINGS, 0, {})
    assert set(machine.forming) == set(machine.members)
    *early, last = machine.members
    for member in early:
        assert machine.handle(ev.MemberHeld(1, member)) == []
    assert machine.handle(ev.MemberHeld(1, early[0])) == [], "twice"
    assert machine.handle(ev.MemberHeld(0, last)) == [], "of an older epoch"
    assert machine.handle(ev.MemberHeld(1, last)) == [ev.Resume(1, (), (), dict.fromkeys(machine.members, 1))]
    assert machine.forming == ()


def test_a_lost_member_takes_its_cluster_along_and_is_told():
    machine = owner()
    answer(machine)
    told_1, told_0, reform = machine.handle(ev.MemberLost("a1", "killed"))
    assert told_0 == ev.LeaveOut("a0", 2, "with 'a1': killed", False)
    assert told_1 == ev.LeaveOut("a1", 2, "killed", False)
    rings = {"r0": ("b0", "c0"), "r1": ("b0", "c1")}
    assert reform == ev.Reform(2, rings, 0, {"a0": "with 'a1': killed", "a1": "killed"})
    assert machine.handle(ev.MemberLost("a0", "too")) == []
    assert machine.members == ("b0", "c0", "c1")


def test_a_round_that_is_whole_in_all_rings_is_handed_on_and_any_other_starts_again():
    machine = owner()
    answer(machine)
    machine.handle(ev.MemberLost("a0", "killed"))
    resume, *more = answer(machine, b0=(("r0", 1), ("r1", 1)), c0=(("r0", 1), ("r0", 2)))
    assert resume.kept == (1,), "of round 2 only one ring is whole"
    assert resume.hand_on == (("r1", 1, "b0", ("c1",)),)
    assert more == []
    assert machine.handle(ev.MemberFinished(1, "c1", "r1", 2)) == [ev.CommitRound(1, 2)]


def test_a_loss_that_spoils_has_every_round_start_again_even_one_that_is_whole():
    machine = owner()
    answer(machine)
    machine.handle(ev.MemberLost("a0", "lied", spoils=True))
    whole = (("r0", 1), ("r1", 1))
    resume, *more = answer(machine, b0=whole, c0=whole[:1], c1=whole[1:])
    assert (resume.kept, resume.hand_on, more) == ((), (), [])
    assert finish(machine, 1, 2) == [ev.CommitRound(1, 2)]
    machine.handle(ev.MemberLost("a0", "lied", spoils=True))  # it is no member any more
    machine.handle(ev.MemberSuspected(2, "b0", "silent"))
    (resume, commit) = answer(machine, b0=(("r0", 2), ("r1", 2)), c0=(("r0", 2),), c1=(("r1", 2),))
    assert (resume.kept, commit) == ((2,), ev.CommitRound(2, 3))


def test_what_all_hold_is_committed_when_the_epoch_begins():
    machine = owner()
    answer(machine)
    machine.handle(ev.MemberLost("a0", "killed"))
    out = answer(machine, b0=(("r0", 1), ("r1", 1)), c0=(("r0", 1),), c1=(("r1", 1),))
    assert out == [ev.Resume(2, (1,), (), dict.fromkeys(machine.members, 1)), ev.CommitRound(1, 2)]


def test_reports_of_an_older_epoch_and_during_the_barrier_count_for_nothing():
    machine = owner()
    answer(machine)
    machine.handle(ev.MemberLost("a0", "killed"))
    assert finish(machine, 1, 2) == []
    answer(machine)
    assert finish(machine, 1, 1) == []
    assert finish(machine, 1, 2) == [ev.CommitRound(1, 2)]
    assert machine.handle(ev.MemberFinished(2, "a0", "r0", 2)) == [], "lost"


def test_a_loss_during_the_barrier_begins_another_epoch():
    machine = owner()
    machine.handle(ev.MemberHeld(1, "b0"))
    *_, reform = machine.handle(ev.MemberLost("a0", "killed"))
    assert reform.epoch == 2
    assert set(machine.forming) == {"b0", "c0", "c1"}
    *_, reform = machine.handle(ev.MemberLost("c0", "killed"))
    assert (reform.epoch, reform.rings) == (3, {"r0": ("b0",), "r1": ("b0",)})
    (resume,) = machine.handle(ev.MemberHeld(3, "b0"))
    assert resume.epoch == 3


def test_with_nobody_left_it_ends():
    machine = RoundMembership({"r": ("a",)}, ahead=1)
    machine.begin()
    told, failed = machine.handle(ev.MemberLost("a", "killed"))
    assert told.member == "a"
    assert failed == ev.FailRun("nobody is left in ring 'r' after 'a': killed")
    assert machine.handle(ev.MemberHeld(1, "a")) == []


def test_who_reports_what_cannot_be_is_left_out():
    machine = owner()
    answer(machine)
    *told, reform = machine.handle(ev.MemberFinished(7, "b0", "r0", 1))
    assert [one.reason for one in told] == ["it reported round 7, which is not open"]
    assert "b0" not in reform.rings["r0"]


def test_a_suspicion_tries_once_more_and_a_second_one_before_the_next_commit_leaves_out():
    machine = owner()
    answer(machine)
    assert machine.handle(ev.MemberSuspected(1, "b0", "silent")) == [ev.Reform(2, RINGS, 0, {})]
    assert machine.handle(ev.MemberSuspected(1, "b0", "silent")) == [], "of the epoch before"
    assert machine.handle(ev.MemberSuspected(2, "b0", "silent")) == [], "the epoch has not begun"
    answer(machine)
    finish(machine, 1, 2)
    assert machine.handle(ev.MemberSuspected(2, "b0", "silent")) == [ev.Reform(3, RINGS, 1, {})], "a commit forgives"
    answer(machine)
    told, reform = machine.handle(ev.MemberSuspected(3, "b0", "silent", refused=True))
    assert told == ev.LeaveOut("b0", 4, "silent", True)
    assert "b0" not in reform.rings["r0"]


def test_whose_form_is_not_the_others_is_refused():
    machine = owner()
    for member in machine.members:
        out = machine.handle(ev.MemberHeld(1, member, (), "5 numbers" if member == "b0" else "6 numbers"))
    told, reform = out
    assert told == ev.LeaveOut("b0", 2, "it averages 5 numbers, the others 6 numbers", True)
    assert "b0" not in reform.rings["r0"]


def test_when_as_many_say_one_thing_as_another_nobody_goes_on():
    machine = RoundMembership({"r": ("a", "b")}, ahead=1)
    machine.begin()
    machine.handle(ev.MemberHeld(1, "a", (), "5 numbers"))
    *told, failed = machine.handle(ev.MemberHeld(1, "b", (), "6 numbers"))
    assert {one.member for one in told} == {"a", "b"}
    assert all(one.refused for one in told)
    assert isinstance(failed, ev.FailRun)


def test_a_newcomer_takes_part_after_what_is_kept():
    machine = owner()
    answer(machine)
    (reform,) = machine.handle(ev.ClusterJoined("d", {"d0": ("r0", "r1")}))
    assert reform.rings == {"r0": ("a0", "b0", "c0", "d0"), "r1": ("a1", "b0", "c1", "d0")}
    whole = {"a0": (("r0", 1),), "b0": (("r0", 1), ("r1", 1))}
    (resume,) = answer(machine, **whole)
    assert (resume.kept, resume.first_rounds["d0"], resume.first_rounds["a0"]) == ((1,), 2, 1)
    assert all("d0" not in to for _, _, _, to in resume.hand_on)
    with pytest.raises(InvalidInput):
        machine.handle(ev.ClusterJoined("d", {"d1": ("r0",)}))
    with pytest.raises(InvalidInput):
        machine.handle(ev.ClusterJoined("e", {"d0": ("r0",)}))


def test_a_round_waits_for_a_cluster_that_is_to_return_and_takes_it_along():
    machine = owner()
    answer(machine)
    machine.handle(ev.MemberLost("a0", "killed", returns=True))
    assert answer(machine) == [], "the barrier stays closed"
    (reform,) = machine.handle(ev.ClusterJoined("a", {"a0": ("r0",), "a1": ("r1",)}))
    assert reform.epoch == 3
    (resume,) = answer(machine)
    assert (resume.kept, resume.first_rounds["a0"], resume.first_rounds["b0"]) == ((), 1, 1)


def test_a_cluster_that_does_not_return_is_given_up():
    machine = owner()
    answer(machine)
    machine.handle(ev.MemberLost("a0", "killed", returns=True))
    assert machine.handle(ev.ReturnGivenUp("a")) == [], "the members have not answered yet"
    (resume,) = answer(machine)
    assert resume == ev.Resume(2, (), (), dict.fromkeys(machine.members, 1))
    assert machine.handle(ev.ReturnGivenUp("a")) == []
    machine.handle(ev.MemberLost("c0", "killed", returns=True))
    answer(machine)
    (resume,) = machine.handle(ev.ReturnGivenUp("c"))
    assert isinstance(resume, ev.Resume)


def test_a_newcomer_keeps_no_round_that_comes_after_one_that_starts_again():
    machine = owner()
    answer(machine)
    machine.handle(ev.ClusterJoined("d", {"d0": ("r0", "r1")}))
    (resume,) = answer(machine, b0=(("r0", 2), ("r1", 2)))
    assert (resume.kept, resume.first_rounds["d0"]) == ((), 1)


def test_fail_stop_ends_at_the_first_loss():
    machine = RoundMembership(RINGS, on_loss="fail", ahead=1)
    assert machine.handle(ev.MemberLost("a0", "killed")) == [ev.FailRun("lost 'a0': killed")]
    machine = RoundMembership(RINGS, on_loss="fail", ahead=1)
    assert machine.handle(ev.MemberSuspected(0, "a0", "silent")) == [ev.FailRun("lost 'a0': silent")]


# Any order of events.

SHAPES = [
    ({"r": ("a", "b")}, {"a": "a", "b": "b"}),
    ({"r": ("a", "b", "c")}, {"a": "a", "b": "b", "c": "c"}),
    (RINGS, CLUSTERS),
]
NEWCOMER = {"n0": ("r", "r0"), "n1": ("r1",)}


def crew_of(shape, **options):
    rings, clusters = SHAPES[shape]
    return Crew(rings, clusters, **{"rounds": 3, "window": 2, **options})


def newcomers(crew):
    """One cluster more, with a member or two for the rings there are."""
    there = {ring for player in crew.players.values() for ring in player.rings}
    members = {name: tuple(ring for ring in rings if ring in there) for name, rings in NEWCOMER.items()}
    return {name: rings for name, rings in members.items() if rings}


@pytest.mark.parametrize("shape", range(len(SHAPES)))
@pytest.mark.parametrize("window", [1, 2])
def test_without_faults_every_round_is_merged_by_all(shape, window):
    crew = crew_of(shape, window=window)
    crew.run()
    crew.check()
    everyone = {ring: frozenset(members) for ring, members in SHAPES[shape][0].items()}
    for player in crew.players.values():
        assert player.merged == {n: {ring: everyone[ring] for ring in player.rings} for n in (1, 2, 3)}
    assert crew.owner.epoch == 1


@pytest.mark.parametrize("victim", sorted(CLUSTERS))
def test_a_member_killed_at_any_step_costs_the_others_nothing(victim):
    for at in range(1000):
        crew = crew_of(2)
        if not all(crew.step(choice) for choice in range(at)):
            assert at > 30, "the whole run was tried"
            break
        crew.kill(victim)
        crew.run()
        crew.check()
        assert all(player.machine.committed == 3 for player in crew.alive)
        assert all(set(player.merged) == {1, 2, 3} for player in crew.alive)


@settings(max_examples=400, deadline=None)
@given(st.data(), st.sampled_from(range(len(SHAPES))), st.integers(1, 3), st.booleans())
def test_no_order_of_events_lets_members_merge_different_averages_or_hang(data, shape, window, fifo):
    """Messages arrive in any order (within a connection too, unless `fifo`) and twice; members die, join and are
    suspected, and some of the lost are to return; connections lose what is on them. Then everything that is left
    arrives, nobody is waited for any more, and all is merged."""
    crew = crew_of(shape, window=window)
    for choice in data.draw(st.lists(st.integers(0, 2**20), max_size=150), label="steps"):
        what, choice = choice % 32, choice // 32
        if what == 0 and len(crew.alive) > 1:
            crew.kill(crew.alive[choice % len(crew.alive)].name, returns=choice // 8 % 2 == 1)
        elif what == 5:
            crew.happen(ev.ReturnGivenUp(sorted({"n", *CLUSTERS.values()})[choice % 4]))
        elif what == 1 and "n" not in crew.clusters.values() and not crew.owner.failed:
            crew.join("n", newcomers(crew))
        elif what == 2 and crew.alive:
            suspect = crew.alive[choice % len(crew.alive)].name
            crew.happen(ev.MemberSuspected(crew.owner.epoch, suspect, "nothing came"))
        elif what == 3:
            crew.drop_part(choice)
        else:
            crew.step(choice, fifo=fifo, keep=what == 4)
        crew.check()
    for cluster in ("n", *sorted(CLUSTERS.values())):
        crew.happen(ev.ReturnGivenUp(cluster))
    crew.run()
    crew.check()
    if not crew.owner.failed:
        for player in crew.alive:
            assert player.machine.committed == 3
            first = min(player.merged, default=4)
            assert set(player.merged) == set(range(first, 4))
            if crew.clusters[player.name] != "n":
                assert first == 1


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 2**20), max_size=60), st.integers(0, 2**20))
def test_a_dropped_message_of_a_member_or_to_it_costs_at_most_that_member(steps, which):
    """A control connection that loses something is closed: its member is lost."""
    crew = crew_of(2)
    for choice in steps:
        crew.step(choice)
    wires = sorted(wire for wire, waiting in crew.wires.items() if waiting and "owner" in wire)
    if wires:
        (victim,) = {*wires[which % len(wires)]} - {"owner"}
        crew.kill(victim, noticed=False)
        crew.run() if crew.done else crew.happen(ev.MemberLost(victim, "its connection closed"))
    crew.run()
    crew.check()
    assert all(player.machine.committed == 3 for player in crew.alive)
    assert len(crew.alive) >= 3
