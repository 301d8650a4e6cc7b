"""The ring machine: exact instruction lists for small rings, and its laws under any order of events."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ring_allreduce.ring.events import (
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
    StoreOwn,
    TakeHeld,
)
from ring_allreduce.ring.ring_machine import RingMachine
from ring_timing import Layout
from tests.unit.ring_allreduce.simulation import Case, Simulation


def ring(members="ab", me="a", elements=4, chunk=2, number=1, epoch=0):
    return RingMachine(tuple(members), me, elements, chunk, number, epoch)


def chunk(sender="b", phase="reduce", block=1, start=2, stop=4, weight=3.0, counters=(), number=1, epoch=0):
    return ChunkArrived(sender, epoch, number, phase, block, start, stop, weight, counters)


def test_a_lone_member_finishes_at_once():
    machine = ring("a", "a", 5, 2)
    assert machine.handle(ContributionReady(7.0, (1,)), 0.0) == [StoreOwn(), FinishRing(7.0, (1,))]
    assert machine.finished


def test_two_members_step_by_step():
    machine = ring()
    assert machine.handle(ContributionReady(5.0, (2, 9)), 0.0) == [
        ScaleOwn(0, 2),
        SendChunk("b", "reduce", 0, 0, 2, 5.0, (2, 9)),
    ]
    assert machine.waits_for == "b"
    assert machine.handle(chunk(counters=(4, 1)), 0.0) == [
        AddOwn(2, 4),
        DivideChunk(2, 4, 8.0),
        StoreChunk(2, 4),
        SendChunk("b", "gather", 1, 2, 4, 8.0, (4, 9)),
    ]
    assert machine.handle(chunk("b", "gather", 0, 0, 2, 8.0, (4, 9)), 0.0) == [
        StoreChunk(0, 2),
        FinishRing(8.0, (4, 9)),
    ]
    assert machine.finished
    assert machine.waits_for is None


def test_a_chunk_goes_on_before_the_next_one_has_arrived():
    machine = ring("abc", "a", 12, 2)
    machine.handle(ContributionReady(1.0), 0.0)
    assert machine.handle(chunk("c", "reduce", 2, 8, 10, 1.0), 0.0) == [
        AddOwn(8, 10),
        SendChunk("b", "reduce", 2, 8, 10, 2.0, ()),
    ]


def test_an_early_chunk_is_held_and_goes_on_when_the_contribution_is_ready():
    machine = ring()
    assert machine.handle(chunk(), 0.0) == [HoldChunk("b", 1, 2, 4)]
    assert machine.waits_for is None
    assert machine.handle(ContributionReady(5.0), 0.0) == [
        ScaleOwn(0, 2),
        SendChunk("b", "reduce", 0, 0, 2, 5.0, ()),
        TakeHeld("b", 1, 2, 4),
        AddOwn(2, 4),
        DivideChunk(2, 4, 8.0),
        StoreChunk(2, 4),
        SendChunk("b", "gather", 1, 2, 4, 8.0, ()),
    ]


def test_an_early_chunk_with_other_counters_is_refused_when_mine_are_known():
    machine = ring()
    machine.handle(chunk(counters=(1,)), 0.0)
    assert machine.handle(ContributionReady(5.0), 0.0)[-1] == RefuseChunk("b", "1 counters, not 0")


@pytest.mark.parametrize(
    ("wrong", "kind"),
    [
        (chunk(epoch=-1), DropChunk),
        (chunk(epoch=1), DropChunk),
        (chunk(number=2), DropChunk),
        (chunk("x"), RefuseChunk),
        (chunk("a"), RefuseChunk),
        (chunk(start=1), RefuseChunk),
        (chunk(stop=5), RefuseChunk),
        (chunk(block=7), RefuseChunk),
        (chunk(block=0, start=0, stop=2), RefuseChunk),
        (chunk(phase="gather"), RefuseChunk),
        (chunk(phase="direct"), RefuseChunk),
        (chunk(weight=math.nan), RefuseChunk),
        (chunk(weight=-1.0), RefuseChunk),
        (chunk(counters=(1,)), RefuseChunk),
    ],
)
def test_wrong_chunks_change_nothing(wrong, kind):
    machine = ring()
    machine.handle(ContributionReady(5.0), 0.0)
    assert [type(instruction) for instruction in machine.handle(wrong, 0.0)] == [kind]
    # The right one still has its full effect.
    assert machine.handle(chunk(), 0.0)[0] == AddOwn(2, 4)


def test_a_gathered_chunk_before_my_contribution_is_impossible_and_refused():
    (refused,) = ring().handle(chunk("b", "gather", 0, 0, 2, 8.0), 0.0)
    assert refused == RefuseChunk("b", "block 0 cannot be complete without this member")


def test_repeated_chunks_are_dropped_in_both_phases_and_while_early():
    machine = ring()
    machine.handle(chunk(), 0.0)
    dropped = [DropChunk("b", "a chunk that was there before")]
    assert machine.handle(chunk(), 0.0) == dropped
    machine.handle(ContributionReady(5.0), 0.0)
    assert machine.handle(chunk(), 0.0) == dropped
    final = chunk("b", "gather", 0, 0, 2, 8.0)
    machine.handle(final, 0.0)
    assert machine.handle(final, 0.0) == dropped


@st.composite
def unequal_shares(draw, members):
    """Shares that sum to 1, any of them zero; or None."""
    parts = draw(st.lists(st.integers(0, 5), min_size=members, max_size=members))
    return tuple(part / sum(parts) for part in parts) if sum(parts) else None


@settings(max_examples=150, deadline=None)
@given(
    data=st.data(),
    members=st.integers(1, 6),
    elements=st.integers(0, 40),
    chunk_elements=st.integers(1, 12),
    faults=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_any_order_of_events_gives_every_member_the_same_exact_mean(
    data, members, elements, chunk_elements, faults, seed
):
    case = Case(members, elements, chunk_elements, seed, shares=data.draw(unequal_shares(members)))
    simulation = Simulation(case).run(faults)
    case.check(simulation)
    # Conservation: what all sent is exactly 2 (n − 1) vectors, whatever was repeated or spoilt on the way.
    assert sum(simulation.sent_elements.values()) == 2 * (members - 1) * elements


@settings(max_examples=60, deadline=None)
@given(members=st.integers(2, 5), elements=st.integers(0, 30), seed=st.integers(0, 2**32))
def test_no_order_of_arrival_changes_a_byte(members, elements, seed):
    case = Case(members, elements, 4, seed)
    averages = [Simulation(case, order).run(faults=True).results[1, "m0"][0] for order in (0, 1)]
    assert torch.equal(averages[0].view(torch.int32), averages[1].view(torch.int32))


@settings(max_examples=60, deadline=None)
@given(members=st.integers(2, 5), elements=st.integers(0, 30), lost=st.integers(0, 500), seed=st.integers(0, 2**32))
def test_a_chunk_that_is_lost_leaves_a_round_unfinished_and_never_wrong(members, elements, lost, seed):
    case = Case(members, elements, 4, seed)
    simulation = Simulation(case).run(faults=True, lose=lost)
    case.check(simulation, some=True)
    assert len(simulation.results_of(1)) < members or simulation.lost is None


@settings(max_examples=60, deadline=None)
@given(members=st.integers(2, 5), elements=st.integers(0, 30), seed=st.integers(0, 2**32))
def test_rounds_that_interleave_do_not_touch_each_other(members, elements, seed):
    case = Case(members, elements, 4, seed, rounds=3)
    case.check(Simulation(case).run(faults=True))


def test_each_member_sends_two_n_minus_one_nths():
    simulation = Simulation(Case(4, 120, 7, 0)).run(faults=False)
    assert set(simulation.sent_elements.values()) == {2 * 3 * 120 // 4}


def test_a_member_whose_blocks_are_small_sends_less():
    # Everyone sends all blocks but one in each phase: it is the bytes of the blocks that differ.
    simulation = Simulation(Case(3, 100, 7, 0, shares=(0.8, 0.2, 0.0))).run(faults=False)
    # m0 does not send block 1 (completed here) and block 2 (it is whole there): 100 − 20 + 100 − 0, and so on.
    assert simulation.sent_elements == {"m0": 180, "m1": 120, "m2": 100}


def test_what_arrives_early_is_at_most_every_block_but_mine():
    layout = Layout(21, 4, 3)
    machine = RingMachine(tuple("abcd"), "a", 21, 3, 1, 0)
    held = []
    for block in (1, 2, 3):
        for start, stop in layout.chunks(block):
            held += machine.handle(ChunkArrived("d", 0, 1, "reduce", block, start, stop, 1.0), 0.0)
    first, last = layout.block(0)
    spans = [i for instruction in held for i in range(instruction.start, instruction.stop)]
    assert sorted(spans) == [i for i in range(21) if not first <= i < last]
