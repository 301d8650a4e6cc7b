"""What holds for one member's part in a round, whether it averages in a ring or exchanges directly."""

import math

import pytest

from ring_allreduce.errors import InvalidInput
from ring_allreduce.ring.direct_machine import DirectMachine
from ring_allreduce.ring.events import ChunkArrived, ContributionReady, DropChunk, RefuseChunk
from ring_allreduce.ring.ring_machine import RingMachine

FIRST_PHASE = {RingMachine: "reduce", DirectMachine: "direct"}

pytestmark = pytest.mark.parametrize("kind", [RingMachine, DirectMachine])


def part(kind, members="ab", me="a", elements=4, chunk=4):
    return kind(tuple(members), me, elements, chunk, 1, 0)


def first_chunk(kind, **changed):
    """The first chunk that `a` waits for from `b`, with some fields changed."""
    ring = kind is RingMachine
    fields = {"sender": "b", "epoch": 0, "round": 1, "phase": FIRST_PHASE[kind], "block": int(ring)}
    fields |= {"start": 2 * ring, "stop": 4, "weight": 3.0, "counters": ()}
    return ChunkArrived(**fields | changed)


@pytest.mark.parametrize("weight", [-1.0, math.nan, math.inf])
def test_an_impossible_weight_of_ones_own_is_refused(kind, weight):
    with pytest.raises(InvalidInput):
        part(kind).handle(ContributionReady(weight), 0.0)


@pytest.mark.parametrize(("members", "me"), [("ab", "c"), ("aba", "a")])
def test_a_stranger_and_a_member_that_is_there_twice_are_refused(kind, members, me):
    with pytest.raises(InvalidInput):
        part(kind, members, me)


def test_a_second_contribution_is_refused(kind):
    member = part(kind)
    member.handle(ContributionReady(1.0), 0.0)
    with pytest.raises(InvalidInput):
        member.handle(ContributionReady(1.0), 0.0)


def test_the_first_chunk_counts_once(kind):
    member = part(kind)
    member.handle(ContributionReady(1.0), 0.0)
    assert member.handle(first_chunk(kind), 0.0)
    assert member.received == 1
    (again,) = member.handle(first_chunk(kind), 0.0)
    assert isinstance(again, DropChunk)
    assert member.received == 1


@pytest.mark.parametrize(
    ("changed", "verdict"),
    [
        ({"epoch": 1}, DropChunk),
        ({"round": 2}, DropChunk),
        ({"sender": "x"}, RefuseChunk),
        ({"stop": 3}, RefuseChunk),
        ({"block": 7}, RefuseChunk),
        ({"weight": math.inf}, RefuseChunk),
        ({"weight": -1.0}, RefuseChunk),
        ({"counters": (1,)}, RefuseChunk),
    ],
)
def test_a_chunk_of_another_round_is_dropped_and_an_impossible_one_is_refused(kind, changed, verdict):
    member = part(kind)
    member.handle(ContributionReady(1.0), 0.0)
    (found,) = member.handle(first_chunk(kind, **changed), 0.0)
    assert isinstance(found, verdict)
    assert member.received == 0


def test_another_number_of_counters_is_refused_once_ones_own_is_known(kind):
    member = part(kind)
    member.handle(first_chunk(kind, counters=(1, 2)), 0.0)
    found = member.handle(ContributionReady(1.0, (1,)), 0.0)
    assert RefuseChunk("b", "2 counters, not 1") in found
