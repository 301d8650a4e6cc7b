"""Who follows a ring gets the bytes that its members hold, and holds up nobody."""

import pytest
import torch

from ring_allreduce.errors import InvalidInput
from ring_allreduce.ring.following import Feeding, FollowedRounds
from ring_allreduce.ring.messages import (
    FOLLOWED_KINDS,
    MOST_SPANS,
    RING_KINDS,
    FollowedMissing,
    FollowedPiece,
    FollowedTaken,
    FollowedWhole,
)
from ring_allreduce.ring.reducer import RingReducer
from ring_allreduce.transport.endpoint import Delivery
from ring_allreduce.transport.in_process import InProcessNetwork
from ring_allreduce.transport.message import Codec
from ring_allreduce.transport.stats import Lane
from tests.unit.ring_allreduce.fleet import part, spec


class FollowedRing:
    """A ring on one network, whose averages "f" follows."""

    def __init__(self, ring, most_behind=3):
        self.network = InProcessNetwork()
        codec = Codec([*RING_KINDS, *FOLLOWED_KINDS])
        self.ends = {name: self.network.endpoint(name, codec) for name in (*ring.members, "f")}
        self.network.connect_all()
        self.feeding = {name: Feeding(self.ends[name], most_behind) for name in ring.members}
        self.reducers = {
            name: RingReducer(self.ends[name], [ring], max_rounds=1, completed=self.feeding[name].completed)
            for name in ring.members
        }
        for each in self.feeding.values():
            each.feed({ring.name: ["f"]})
        self.followed = FollowedRounds({ring.name: ring.elements}, 3)
        self.results = {}
        self.got = []
        """(sender, message) of everything that came to the follower."""

    def average(self, number, *, follower=True):
        for name, reducer in self.reducers.items():
            reducer.contribute(number, "r", part(name, 50), float(ord(name) - 96), (ord(name),))
        self.settle(follower=follower)
        for reducer in self.reducers.values():
            reducer.commit(number)

    def settle(self, *, follower=True):
        moved = True
        while moved:
            moved = False
            for name, reducer in self.reducers.items():
                for delivery in self.ends[name].poll(0.0):
                    moved = True
                    assert self.feeding[name].on_delivery(delivery) or reducer.on_delivery(delivery)
                for result in reducer.finished():
                    self.results[name, result.round] = result.average.clone(), result.total_weight, result.counters
                    self.feeding[name].whole(result, tells=name == self.reducers_first)
                reducer.pump()
                self.feeding[name].pump()
            if follower:
                for delivery in self.ends["f"].poll(0.0):
                    moved = True
                    self.got.append((delivery.sender, delivery.message))
                    assert self.followed.on_delivery(delivery)

    @property
    def reducers_first(self):
        return next(iter(self.reducers))


@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize(("members", "wire"), [("a", "exact"), ("ab", "exact"), ("abc", "exact"), ("abc", "int8")])
def test_a_follower_gets_the_same_bytes_each_from_one_member(members, wire, direct):
    run = FollowedRing(spec(members=members, wire=wire, direct=direct and len(members) > 1))
    run.average(1)
    got = run.followed.whole("r", 1)
    average, weight, counters = run.results[members[0], 1]
    assert torch.equal(got.average.view(torch.int32), average.view(torch.int32))
    assert (got.total_weight, got.counters) == (weight, counters)
    pieces = [message for _, message in run.got if isinstance(message, FollowedPiece)]
    assert sum(piece.stop - piece.start for piece in pieces) == 50
    assert {sender for sender, _ in run.got} == set(members)


def test_a_follower_that_takes_nothing_holds_up_nobody_and_is_kept_little_for():
    run = FollowedRing(spec(members="ab"), most_behind=2)
    for number in (1, 2, 3, 4):
        run.average(number, follower=False)
    assert ("a", 4) in run.results
    rounds = {delivery.message.round for delivery in run.ends["f"].poll(0.0)}
    assert rounds == {1, 2}
    for each in run.feeding.values():
        each.feed({"r": ["f"]})
    run.average(5)
    assert {message.round for _, message in run.got} == {5}


def test_who_takes_what_comes_is_sent_more():
    run = FollowedRing(spec(members="ab"), most_behind=1)
    for number in (1, 2, 3):
        run.average(number)
        assert run.followed.whole("r", number) is not None
        run.followed.commit(number)
        for name in "ab":
            run.ends["f"].send(name, Lane.BULK, FollowedTaken(round=number))
        run.settle()
    assert run.followed.committed == 3


def test_a_round_that_starts_again_is_made_of_pieces_of_one_epoch():
    followed = FollowedRounds({"r": 4}, 3)

    def come(epoch, start, stop, value):
        piece = FollowedPiece(ring="r", round=1, start=start, stop=stop)
        followed.on_delivery(Delivery("a", epoch, piece, (torch.full((stop - start,), value),)))

    def end(epoch):
        followed.on_delivery(Delivery("a", epoch, FollowedWhole(ring="r", round=1, total_weight=1.0), ()))

    come(1, 0, 2, 1.0)
    come(1, 2, 4, 1.0)
    end(1)
    assert followed.whole("r", 1) is not None
    followed.resumed(2, kept=[1])
    assert followed.whole("r", 1) is not None
    followed.resumed(3, kept=[])
    assert followed.whole("r", 1) is None
    come(4, 0, 2, 2.0)
    come(3, 2, 4, 1.0)  # of an older epoch than what has come
    end(4)
    assert followed.whole("r", 1) is None
    come(4, 2, 4, 2.0)
    come(4, 2, 4, 9.0)  # twice
    assert followed.whole("r", 1).average.tolist() == [2.0] * 4


def test_what_no_member_sends_is_refused_and_what_is_early_or_late_has_no_effect():
    followed = FollowedRounds({"r": 4}, 2)
    followed.commit(3)

    def come(ring="r", number=4, start=0, stop=2, tensor=None):
        piece = FollowedPiece(ring=ring, round=number, start=start, stop=stop)
        return followed.on_delivery(Delivery("a", 0, piece, (torch.ones(stop - start) if tensor is None else tensor,)))

    for wrong in (
        {"ring": "other"},
        {"start": 2, "stop": 5},
        {"tensor": torch.ones(3)},
        {"tensor": torch.full((2,), torch.nan)},
        {"tensor": torch.ones(2, dtype=torch.int32)},
    ):
        with pytest.raises(InvalidInput):
            come(**wrong)
    assert come(number=3)
    assert come(number=6)
    followed.on_delivery(Delivery("a", 0, FollowedWhole(ring="r", round=6, total_weight=1.0), ()))
    assert followed.whole("r", 6) is None
    come(start=0, stop=3)
    come(start=2, stop=3)
    followed.on_delivery(Delivery("a", 0, FollowedWhole(ring="r", round=4, total_weight=1.0), ()))
    assert followed.whole("r", 4) is None, "four numbers have come, and not all of the vector"


def lose_a_member(run, number):
    """A round is averaged, of which "b" sends the follower nothing."""
    plain = run.feeding["b"].pump
    run.feeding["b"].pump = lambda: None
    run.average(number)
    run.feeding["b"].pump = plain


def ask(run, name, spans, number=1):
    message = FollowedMissing(ring="r", round=number, spans=tuple(spans))
    run.ends["f"].send(name, Lane.BULK, message)
    run.settle()


def test_what_a_lost_member_completed_is_sent_again_by_another():
    run = FollowedRing(spec(members="abc", chunk=7))
    lose_a_member(run, 1)
    assert run.followed.whole("r", 1) is None
    run.followed.final(1)
    run.followed.resumed(2, kept=[])
    ask(run, "c", run.followed.missing("r", 1))
    assert torch.equal(run.followed.whole("r", 1).average, run.results["a", 1][0])
    assert run.followed.missing("r", 1) == []
    before = len(run.got)
    ask(run, "c", [(0, 50)])
    assert len(run.got) == before, "it is sent again once"


def test_what_is_sent_again_may_overlap_with_what_comes_late():
    run = FollowedRing(spec(members="abc", chunk=7))
    lose_a_member(run, 1)
    run.followed.final(1)
    missing = run.followed.missing("r", 1)
    run.settle()  # the lost member's pieces come all the same
    ask(run, "a", [(start - 1, stop) if start else (start, stop) for start, stop in missing])
    assert torch.equal(run.followed.whole("r", 1).average, run.results["a", 1][0])


@pytest.mark.parametrize(("spans", "number"), [([(0, 51)], 1), ([(3, 3)], 1), ([(5, 2)], 1), ([(0, 50)], 2)])
def test_spans_that_no_ring_has_and_rounds_that_nobody_holds_are_not_answered(spans, number):
    run = FollowedRing(spec(members="ab"))
    run.average(1)
    before = len(run.got)
    ask(run, "a", spans, number)
    assert len(run.got) == before


def test_an_average_is_not_held_for_followers_that_have_taken_it():
    run = FollowedRing(spec(members="ab"))
    run.average(1)
    for name in "ab":
        run.ends["f"].send(name, Lane.BULK, FollowedTaken(round=1))
    run.settle()
    before = len(run.got)
    ask(run, "a", [(0, 50)])
    assert len(run.got) == before


def test_of_many_gaps_the_last_span_covers_what_else_is_missing():
    followed = FollowedRounds({"r": 4 * MOST_SPANS}, 2)
    for start in range(0, 4 * MOST_SPANS, 2):
        piece = FollowedPiece(ring="r", round=1, start=start, stop=start + 1)
        followed.on_delivery(Delivery("a", 0, piece, (torch.ones(1),)))
    missing = followed.missing("r", 1)
    assert len(missing) == MOST_SPANS
    assert missing[0] == (1, 2)
    assert missing[-1] == (2 * MOST_SPANS - 1, 4 * MOST_SPANS)
