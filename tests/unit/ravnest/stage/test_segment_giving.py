"""What a donor gives, and when. Whole segments that arrive: test_segment_taking.py."""

import torch

from ravnest.stage import donor_messages as dm
from ravnest.stage import messages as m
from ravnest.stage import shadow_messages as shm
from ring_allreduce.transport import Delivery
from tests.unit.ravnest.stage.test_segment_taking import pair

__all__ = ["pair"]


def test_no_more_is_on_its_way_than_there_is_room_for(pair):
    pair.ask()
    assert len(pair.given()) == dm.WINDOW
    assert pair.given() == []


def test_what_a_merge_changes_meanwhile_is_sent_as_it_was(pair):
    (segment,) = pair.rounds.rings.segments.values()
    before = pair.rounds.anchor(0).clone()
    pair.ask()
    first = pair.given()
    contributions = pair.rounds.snapshot(1, samples=4)
    average = type("Average", (), {})()
    average.vector, average.total_weight = torch.ones_like(before), 1.0
    average.buffers, average.taken = contributions[0].buffers, contributions[0].taken
    average.counters = contributions[0].counters
    pair.rounds.merge(1, {0: average})
    assert not torch.equal(before, pair.rounds.anchor(0))
    for header, tensors in first:
        for _, message in pair.arrive(header, tensors):
            pair.rounds.giving.take(Delivery("c1.s0", 1, message, ()))
    assert isinstance(pair.hand_over(), dm.SegmentTaken)
    flat = torch.cat([pair.taking.weights[name].flatten() for name in segment.parameters])
    assert torch.equal(flat, before)
    assert pair.rounds.sending.kept_bytes == 0


def test_a_donor_gives_nothing_before_it_has_merged_the_round(pair):
    pair.ask(from_round=3)
    assert pair.given() == []
    pair.rounds.merged = 3
    assert {header.round for header, _ in pair.given()} == {3}


def test_nothing_is_given_to_who_is_no_member_or_is_lost(pair):
    asked = pair.ask()
    pair.rounds.giving.forget(["c1.s0"])
    assert pair.rounds.giving.take(Delivery("c9.s0", 1, asked, ()))
    assert pair.rounds.giving.take(Delivery("c1.s0", 1, replace_ring(asked, 7), ()))
    assert pair.given() == []
    assert not pair.rounds.giving.ready


def test_who_asks_before_it_is_known_to_follow_is_given_once_it_is(pair):
    def follow(*spares):
        followers = (shm.RingFollowers(ring=0, followers=spares),)
        assert pair.rounds.rings.on_delivery(Delivery(m.DRIVER, 1, shm.Followers(rings=followers, peers=()), ()))

    def ask(*spares):
        for spare in spares:
            assert pair.rounds.giving.take(Delivery(spare, 1, asked, ()))

    asked = pair.ask()
    pair.rounds.giving.forget(["c1.s0"])
    ask("~c0.s0")
    assert pair.given() == []
    follow("~c0.s0")
    assert len(pair.given()) == dm.WINDOW
    follow()
    ask(*(f"~c{number}.s0" for number in range(100)))
    pair.rounds.giving.forget(["~c99.s0"])
    follow("~c0.s0", "~c98.s0", "~c99.s0")
    assert {peer for peer, _, _ in pair.rounds.giving.pieces()} == {"~c98.s0"}, "the first are too many, one is lost"


def replace_ring(asked, ring):
    return dm.SegmentAsked(ring=ring, request=asked.request, from_round=0, pieces=1)
