"""When a stage merges a round."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ring_allreduce.errors import InvalidInput
from ring_allreduce.rounds.events import MergeRound, RingFinished, RoundCommitted
from ring_allreduce.rounds.member import RoundMember


def run(machine, *events):
    return [instruction for event in events for instruction in machine.handle(event, 0.0)]


def test_a_stage_merges_what_is_whole_and_committed():
    member = RoundMember({"r0", "r1"})
    assert run(member, RingFinished("r0", 1), RoundCommitted(1)) == []
    assert run(member, RingFinished("r1", 1)) == [MergeRound(1)]
    assert member.merged == 1
    assert run(member, RoundCommitted(1), RingFinished("r0", 1)) == [], "both again, too late"


def test_a_stage_with_an_unknown_ring_is_told():
    with pytest.raises(InvalidInput):
        RoundMember({"r0"}).handle(RingFinished("r9", 1), 0.0)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 8))
def test_any_order_merges_every_round_once_and_in_order(seed, rounds):
    events = [
        event
        for i in range(1, rounds + 1)
        for event in (RingFinished("r0", i), RingFinished("r1", i), RoundCommitted(i))
    ]
    events += random.Random(seed).choices(events, k=4)
    random.Random(seed).shuffle(events)
    assert run(RoundMember({"r0", "r1"}), *events) == [MergeRound(i) for i in range(1, rounds + 1)]
