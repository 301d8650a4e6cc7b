"""The direct machine: exact instruction lists, and its laws under any order of events."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ring_allreduce.ring.direct_machine import AHEAD, DirectMachine
from ring_allreduce.ring.events import (
    ChunkArrived,
    ContributionReady,
    DropChunk,
    FinishRing,
    HoldChunk,
    RefuseChunk,
    ScaleOwn,
    SendChunk,
    StoreOwn,
    SumChunks,
)
from tests.unit.ring_allreduce.simulation import Case, Simulation


def machine(members="ab", me="a", elements=4, chunk=4):
    return DirectMachine(tuple(members), me, elements, chunk, 1, 0)


def chunk(sender="b", phase="direct", block=0, start=0, stop=4, weight=3.0, counters=(), number=1, epoch=0):
    return ChunkArrived(sender, epoch, number, phase, block, start, stop, weight, counters)


def test_a_lone_member_finishes_at_once():
    assert machine("a").handle(ContributionReady(7.0, (1,)), 0.0) == [StoreOwn(), FinishRing(7.0, (1,))]


def test_three_members_step_by_step():
    direct = machine("abc", "b")
    assert direct.handle(chunk("c", weight=1.0, counters=(9, 1)), 0.0) == [HoldChunk("c", 0, 0, 4)]
    assert direct.waits_for is None
    assert direct.handle(ContributionReady(5.0, (2, 9)), 0.0) == [
        ScaleOwn(0, 4),
        SendChunk("a", "direct", 0, 0, 4, 5.0, (2, 9)),
        SendChunk("c", "direct", 0, 0, 4, 5.0, (2, 9)),
        HoldChunk("b", 0, 0, 4),
    ]
    assert direct.waits_for == "a"
    assert direct.handle(chunk("a", weight=2.0, counters=(0, 0)), 0.0) == [
        HoldChunk("a", 0, 0, 4),
        SumChunks(0, 4, 8.0),
        FinishRing(8.0, (9, 9)),
    ]
    assert direct.finished
    assert (direct.waits_for, direct.received, direct.expected) == (None, 2, 2)


def test_chunks_that_all_came_early_are_added_when_the_contribution_is_ready():
    direct = machine("ab", "a", 6, 4)
    direct.handle(chunk(start=4, stop=6), 0.0)
    direct.handle(chunk(), 0.0)
    instructions = direct.handle(ContributionReady(1.0), 0.0)
    assert instructions[-3:] == [SumChunks(0, 4, 4.0), SumChunks(4, 6, 4.0), FinishRing(4.0, ())]


def test_where_each_part_has_to_be_seen_no_more_chunks_wait_than_ahead():
    direct = DirectMachine(("a", "b"), "a", 12, 2, 1, 0, each=True)
    spans = [(start, start + 2) for start in range(0, 12, 2)]

    def sent(instructions):
        return [(each.start, each.stop) for each in instructions if isinstance(each, SendChunk)]

    assert sent(direct.handle(ContributionReady(2.0), 0.0)) == spans[:AHEAD]
    assert direct.handle(chunk(start=2, stop=4), 0.0)[1] == SumChunks(2, 4, 5.0, (2.0, 3.0))
    assert direct.waits_for == "b"
    early = [
        instruction
        for span in spans[:1] + spans[3:]
        for instruction in direct.handle(chunk(start=span[0], stop=span[1]), 0.0)
    ]
    assert sent(early) == [spans[5]]
    last = direct.handle(chunk(start=4, stop=6), 0.0)
    assert last == [HoldChunk("b", 0, 4, 6), SumChunks(4, 6, 5.0, (2.0, 3.0)), FinishRing(5.0, ())]


def test_chunks_that_came_before_the_contribution_are_summed_as_mine_are_sent():
    direct = DirectMachine(("a", "b"), "b", 12, 2, 1, 0, each=True)
    for start in range(0, 12, 2):
        assert direct.handle(chunk("a", start=start, stop=start + 2, weight=1.0), 0.0) == [
            HoldChunk("a", 0, start, start + 2)
        ]
    out = direct.handle(ContributionReady(1.0), 0.0)
    assert [type(each).__name__ for each in out] == [
        *["ScaleOwn", "SendChunk", "HoldChunk", "SumChunks"] * 6,
        "FinishRing",
    ]


def test_an_early_chunk_with_other_counters_is_refused_when_mine_are_known():
    direct = machine()
    direct.handle(chunk(counters=(1,)), 0.0)
    assert direct.handle(ContributionReady(5.0), 0.0) == [RefuseChunk("b", "1 counters, not 0")]


@pytest.mark.parametrize(
    ("wrong", "kind"),
    [
        (chunk(epoch=1), DropChunk),
        (chunk(number=2), DropChunk),
        (chunk("x"), RefuseChunk),
        (chunk("a"), RefuseChunk),
        (chunk(start=1), RefuseChunk),
        (chunk(stop=5), RefuseChunk),
        (chunk(block=1), RefuseChunk),
        (chunk(phase="reduce"), RefuseChunk),
        (chunk(weight=math.nan), RefuseChunk),
        (chunk(weight=-1.0), RefuseChunk),
        (chunk(counters=(1,)), RefuseChunk),
    ],
)
def test_wrong_chunks_change_nothing(wrong, kind):
    direct = machine()
    direct.handle(ContributionReady(5.0), 0.0)
    assert [type(instruction) for instruction in direct.handle(wrong, 0.0)] == [kind]
    assert direct.handle(chunk(), 0.0)[-1] == FinishRing(8.0, ())


def test_a_member_that_changes_its_weight_is_refused():
    direct = machine("ab", "a", 8, 4)
    direct.handle(chunk(), 0.0)
    (refused,) = direct.handle(chunk(start=4, stop=8, weight=4.0), 0.0)
    assert isinstance(refused, RefuseChunk)


def test_repeated_chunks_are_dropped():
    direct = machine("abc")
    direct.handle(chunk(), 0.0)
    assert direct.handle(chunk(), 0.0) == [DropChunk("b", "a chunk that was there before")]


@settings(max_examples=150, deadline=None)
@given(
    members=st.integers(1, 6),
    elements=st.integers(0, 40),
    chunk_elements=st.integers(1, 12),
    faults=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_any_order_of_events_gives_every_member_the_same_exact_mean(members, elements, chunk_elements, faults, seed):
    case = Case(members, elements, chunk_elements, seed, direct=True)
    simulation = Simulation(case).run(faults)
    case.check(simulation)
    assert sum(simulation.sent_elements.values()) == members * (members - 1) * elements


@settings(max_examples=60, deadline=None)
@given(members=st.integers(2, 5), elements=st.integers(0, 30), seed=st.integers(0, 2**32))
def test_no_order_of_arrival_changes_a_byte(members, elements, seed):
    case = Case(members, elements, 4, seed, direct=True)
    averages = [Simulation(case, order).run(faults=True).results[1, "m0"][0] for order in (0, 1)]
    assert torch.equal(averages[0].view(torch.int32), averages[1].view(torch.int32))


@settings(max_examples=60, deadline=None)
@given(members=st.integers(2, 5), elements=st.integers(0, 30), lost=st.integers(0, 100), seed=st.integers(0, 2**32))
def test_a_chunk_that_is_lost_leaves_a_round_unfinished_and_never_wrong(members, elements, lost, seed):
    case = Case(members, elements, 4, seed, direct=True)
    simulation = Simulation(case).run(faults=True, lose=lost)
    case.check(simulation, some=True)
    assert len(simulation.results_of(1)) < members or simulation.lost is None


@settings(max_examples=60, deadline=None)
@given(members=st.integers(2, 5), elements=st.integers(0, 30), seed=st.integers(0, 2**32))
def test_rounds_that_interleave_do_not_touch_each_other(members, elements, seed):
    case = Case(members, elements, 4, seed, direct=True, rounds=3)
    case.check(Simulation(case).run(faults=True))
