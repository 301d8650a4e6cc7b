"""The group machine: an exact instruction list, and its laws under any order of events, for any groups."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ring_allreduce.errors import InvalidInput
from ring_allreduce.ring.events import (
    AddHeld,
    AddOwn,
    ChunkArrived,
    ContributionReady,
    DivideChunk,
    DropChunk,
    FinishRing,
    HoldChunk,
    RefuseChunk,
    ScaleOwn,
    SendChunk,
    StoreChunk,
    TakeHeld,
)
from ring_allreduce.ring.group_machine import GroupMachine
from tests.unit.ring_allreduce.simulation import Case, Simulation

FOUR = (0, 2)
"""Members a, b and c, d: two blocks, which belong to a and c, and to b and d; four cells."""


def machine(me="a", elements=8, chunk=2, firsts=FOUR):
    return GroupMachine(tuple("abcd"), me, elements, chunk, 1, 0, firsts)


def chunk(sender, phase, cell, weight=1.0, counters=(), **other):
    start = other.pop("start", 2 * cell)
    return ChunkArrived(sender, other.get("epoch", 0), other.get("number", 1), phase, cell, start, start + 2, weight)


def send(to, phase, cell, weight):
    return SendChunk(to, phase, cell, 2 * cell, 2 * cell + 2, weight, ())


@pytest.mark.parametrize("firsts", [(), (0,), (2, 0), (0, 0), (0, 4), (-1, 2)])
def test_a_lone_group_and_groups_that_cannot_be_are_refused(firsts):
    with pytest.raises(InvalidInput, match="begin at two or more"):
        machine(firsts=firsts)


def test_a_member_step_by_step():
    a = machine()
    # Block 1 is b's and d's: a begins its cells 2 and 3 in its own group.
    assert a.handle(ContributionReady(5.0), 0.0) == [
        ScaleOwn(4, 6),
        send("b", "reduce", 2, 5.0),
        ScaleOwn(6, 8),
        send("b", "reduce", 3, 5.0),
    ]
    # Cell 0 of a's block starts among the owners here; cell 1 starts at c, and is complete here.
    assert a.handle(chunk("b", "reduce", 0), 0.0) == [AddOwn(0, 2), send("c", "reduce", 0, 6.0)]
    assert a.handle(chunk("c", "reduce", 1, 9.0), 0.0) == [HoldChunk("c", 1, 2, 4)]
    assert a.waits_for == "b"
    assert a.handle(chunk("b", "reduce", 1), 0.0) == [
        AddOwn(2, 4),
        AddHeld("c", 1, 2, 4),
        DivideChunk(2, 4, 15.0),
        StoreChunk(2, 4),
        send("c", "gather", 1, 15.0),
        send("b", "gather", 1, 15.0),
    ]
    # The mean of cell 0 comes from c, where it is complete, and goes on in a's group alone.
    assert a.handle(chunk("c", "gather", 0, 15.0), 0.0) == [StoreChunk(0, 2), send("b", "gather", 0, 15.0)]
    a.handle(chunk("b", "gather", 2, 15.0), 0.0)
    assert a.handle(chunk("b", "gather", 3, 15.0), 0.0) == [StoreChunk(6, 8), FinishRing(15.0, ())]
    assert a.finished
    assert a.received == a.expected == 6


def test_whichever_sum_comes_first_the_group_s_own_is_added_first():
    a = machine()
    a.handle(ContributionReady(5.0), 0.0)
    assert a.handle(chunk("b", "reduce", 1), 0.0) == [AddOwn(2, 4), HoldChunk("a", 1, 2, 4)]
    assert a.handle(chunk("c", "reduce", 1, 9.0), 0.0)[0] == AddHeld("a", 1, 2, 4)


def test_early_chunks_are_held_and_go_on_when_the_contribution_is_ready():
    a = machine()
    assert a.handle(chunk("b", "reduce", 0), 0.0) == [HoldChunk("b", 0, 0, 2)]
    assert a.waits_for is None
    instructions = a.handle(ContributionReady(5.0), 0.0)
    assert instructions[-3:] == [TakeHeld("b", 0, 0, 2), AddOwn(0, 2), send("c", "reduce", 0, 6.0)]


@pytest.mark.parametrize(
    ("wrong", "kind"),
    [
        (chunk("b", "reduce", 0, epoch=1), DropChunk),
        (chunk("b", "reduce", 0, number=2), DropChunk),
        (chunk("d", "reduce", 0), RefuseChunk),
        (chunk("x", "reduce", 0), RefuseChunk),
        (chunk("c", "reduce", 0), RefuseChunk),
        (chunk("b", "reduce", 2), RefuseChunk),
        (chunk("b", "gather", 0), RefuseChunk),
        (chunk("c", "gather", 0), RefuseChunk),
        (chunk("b", "direct", 0), RefuseChunk),
        (chunk("b", "reduce", 7), RefuseChunk),
        (chunk("b", "reduce", 0, start=1), RefuseChunk),
        (chunk("b", "reduce", 0, math.nan), RefuseChunk),
    ],
)
def test_wrong_chunks_change_nothing(wrong, kind):
    a = machine()
    a.handle(ContributionReady(5.0), 0.0)
    assert [type(instruction) for instruction in a.handle(wrong, 0.0)] == [kind]
    assert a.handle(chunk("b", "reduce", 0), 0.0)[0] == AddOwn(0, 2)


def test_repeated_chunks_are_dropped_in_both_phases_and_while_early():
    dropped = [DropChunk("b", "a chunk that was there before")]
    a = machine()
    a.handle(chunk("b", "reduce", 0), 0.0)
    assert a.handle(chunk("b", "reduce", 0), 0.0) == dropped
    a.handle(ContributionReady(5.0), 0.0)
    assert a.handle(chunk("b", "reduce", 0), 0.0) == dropped
    a.handle(chunk("b", "gather", 2), 0.0)
    assert a.handle(chunk("b", "gather", 2), 0.0) == dropped


@st.composite
def grouped(draw):
    """(members, firsts): two or more groups of any sizes, which begin anywhere."""
    members = draw(st.integers(2, 9))
    firsts = draw(st.sets(st.integers(0, members - 1), min_size=2, max_size=members))
    return members, tuple(sorted(firsts))


@settings(max_examples=150, deadline=None)
@given(
    ring=grouped(),
    elements=st.integers(0, 60),
    chunk_elements=st.integers(1, 12),
    faults=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_any_order_of_events_gives_every_member_the_same_exact_mean(ring, elements, chunk_elements, faults, seed):
    members, firsts = ring
    case = Case(members, elements, chunk_elements, seed, groups=firsts)
    simulation = Simulation(case).run(faults)
    case.check(simulation)
    # Conservation: each member but the last adds its part to every number once, and gets its mean once.
    assert sum(simulation.sent_elements.values()) == 2 * (members - 1) * elements


@settings(max_examples=60, deadline=None)
@given(ring=grouped(), elements=st.integers(0, 40), seed=st.integers(0, 2**32))
def test_no_order_of_arrival_changes_a_byte(ring, elements, seed):
    case = Case(ring[0], elements, 4, seed, groups=ring[1])
    averages = [Simulation(case, order).run(faults=True).results[1, "m0"][0] for order in (0, 1)]
    assert torch.equal(averages[0].view(torch.int32), averages[1].view(torch.int32))


@settings(max_examples=60, deadline=None)
@given(ring=grouped(), elements=st.integers(0, 30), lost=st.integers(0, 500), seed=st.integers(0, 2**32))
def test_a_chunk_that_is_lost_leaves_a_round_unfinished_and_never_wrong(ring, elements, lost, seed):
    case = Case(ring[0], elements, 4, seed, groups=ring[1])
    simulation = Simulation(case).run(faults=True, lose=lost)
    case.check(simulation, some=True)
    assert len(simulation.results_of(1)) < ring[0] or simulation.lost is None


@settings(max_examples=40, deadline=None)
@given(ring=grouped(), elements=st.integers(0, 30), seed=st.integers(0, 2**32))
def test_rounds_that_interleave_do_not_touch_each_other(ring, elements, seed):
    case = Case(ring[0], elements, 4, seed, groups=ring[1], rounds=3)
    case.check(Simulation(case).run(faults=True))


def test_members_of_equal_groups_send_as_much_as_in_a_flat_ring():
    simulation = Simulation(Case(6, 120, 7, 0, groups=(1, 4))).run(faults=False)
    assert set(simulation.sent_elements.values()) == {2 * 5 * 120 // 6}
