"""A member hands on what it has made: `giver` in parts, which `taker` adds. Whole runs: test_handed_progress.py."""

from types import SimpleNamespace

import pytest
import torch

from ravnest.stage import donor_messages as dm
from ravnest.stage import messages as m
from ravnest.stage.progress_handing import MOST_PARTS, MOST_SAMPLES, Part, ProgressHanding, added
from ring_allreduce.ring.events import require_weight
from ring_allreduce.ring.wire_forms import decode, encode, why_not_summed
from ring_allreduce.transport import Delivery

ELEMENTS = 10


class Rounds:
    """A stage's rounds, as far as handing on knows them."""

    def __init__(self, parts=(), wire="exact"):
        segment = SimpleNamespace(progress=SimpleNamespace(elements=ELEMENTS, wire=wire))
        self.rings = SimpleNamespace(segments={0: segment}, takers=lambda ring: ("giver", "taker") if not ring else ())
        self.parts = list(parts)

    def unmerged(self, ring):
        return None if self.parts is None else (5, self.parts)


class Pair:
    def __init__(self, *parts):
        self.rounds = Rounds(parts)
        self.giver, self.taker = ProgressHanding(self.rounds), ProgressHanding(Rounds())
        self.told = []

    def ask(self):
        self.taker.take(Delivery(m.DRIVER, 0, dm.TakeProgress(sources=((0, "giver"),)), ()))
        return self

    def pass_on(self, change=lambda header, tensors: (header, tensors)):
        """Let everything arrive that is sent."""
        for _ in range(20):
            for me, mine, other in (("taker", self.taker, self.giver), ("giver", self.giver, self.taker)):
                for peer, header, tensors in list(mine.pieces()):
                    if peer == m.DRIVER:
                        self.told.append(header)
                        continue
                    if isinstance(header, dm.ProgressPiece):
                        header, tensors = change(header, tensors)
                    assert other.take(Delivery(me, 0, header, tuple(tensors)))
        return self

    def add(self, from_round=1, counted=()):
        order = dm.AddProgress(ring=0, giver="giver", from_round=from_round, counted=counted)
        assert self.taker.take(Delivery(m.DRIVER, 0, order, ()))
        return self


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    monkeypatch.setattr(dm, "PROGRESS_PIECE", 4)


def part(number, samples, value):
    return Part(number, samples, torch.arange(ELEMENTS) * value)


def test_what_has_not_counted_comes_as_one_with_all_samples_behind_it():
    pair = Pair(part(3, 8, 1.0), part(4, 4, 10.0), part(5, 2, 100.0)).ask().pass_on()
    assert pair.told == [dm.ProgressTaken(ring=0, giver="giver", updates=5)]
    pair.add(from_round=6, counted=(4,))
    assert pair.taker.due(0, 5) == []
    [due] = pair.taker.due(0, 6)
    assert due.samples == 10
    assert torch.equal(due.progress, torch.arange(ELEMENTS) * 101.0)
    assert pair.taker.due(0, 7) == []
    assert pair.taker.held_bytes == 0


def test_where_all_has_counted_nothing_is_added_and_nothing_held():
    pair = Pair(part(3, 8, 1.0), part(4, 0, 0.0)).ask().pass_on().add(counted=(3,))
    assert pair.taker.due(0, 9) == []
    assert pair.taker.held_bytes == 0


@pytest.mark.parametrize("together", [True, False])
def test_one_stage_takes_of_several_in_one_ring_at_the_same_time(together):
    givers = {name: Rounds([part(1, 4, value)]) for name, value in (("giver", 1.0), ("other", 10.0))}
    hands = {name: ProgressHanding(rounds) for name, rounds in givers.items()}
    rounds = Rounds()
    rounds.rings.takers = lambda ring: ("giver", "other")
    taker = ProgressHanding(rounds)
    sources = [tuple((0, name) for name in givers)] if together else [((0, name),) for name in givers]
    for each in sources:
        taker.take(Delivery(m.DRIVER, 0, dm.TakeProgress(sources=each), ()))
    for peer, header, tensors in list(taker.pieces()):
        hands[peer].take(Delivery("taker", 0, header, tuple(tensors)))
    sent = [[(name, *piece) for piece in hand.pieces()] for name, hand in hands.items()]
    for of_one, of_other in zip(*sent, strict=True):  # in turns
        for name, _, header, tensors in (of_one, of_other):
            taker.take(Delivery(name, 0, header, tuple(tensors)))
    told = [header for peer, header, _ in taker.pieces() if peer == m.DRIVER]
    assert told == [dm.ProgressTaken(ring=0, giver=name, updates=5) for name in givers]
    for name in givers:
        taker.take(Delivery(m.DRIVER, 0, dm.AddProgress(ring=0, giver=name, from_round=1, counted=()), ()))
    assert sorted(float(each.progress[1]) for each in taker.due(0, 1)) == [1.0, 10.0]


def test_nothing_is_added_of_who_was_not_whole():
    pair = Pair(part(3, 8, 1.0)).ask()
    pair.add()
    assert pair.taker.due(0, 9) == []


def test_what_may_change_is_sent_when_the_stage_rests():
    pair = Pair().ask()
    pair.rounds.parts, parts = None, [part(1, 4, 1.0)]
    pair.pass_on()
    assert pair.told == []
    pair.rounds.parts = parts
    pair.pass_on()
    assert pair.told == [dm.ProgressTaken(ring=0, giver="giver", updates=5)]


@pytest.mark.parametrize("moment", ["before", "after"])
def test_of_who_is_lost_what_is_whole_stays(moment):
    pair = Pair(part(1, 4, 1.0)).ask()
    if moment == "after":
        pair.pass_on()
    pair.taker.forget(["giver"])
    pair.pass_on().add()
    assert len(pair.taker.due(0, 9)) == (moment == "after")


def test_another_driver_begins_without_what_was_handed_on():
    pair = Pair(part(1, 4, 1.0)).ask().pass_on()
    pair.taker.clear()
    pair.add()
    assert pair.taker.due(0, 9) == []
    pair.ask().pass_on().add()
    pair.taker.clear()
    assert pair.taker.due(0, 9) == []


def test_who_is_no_member_is_given_nothing_and_asked_for_nothing():
    pair = Pair(part(1, 4, 1.0))
    assert pair.giver.take(Delivery("stranger", 0, dm.ProgressAsked(ring=0, request=1), ()))
    assert list(pair.giver.pieces()) == []
    pair.taker.take(Delivery(m.DRIVER, 0, dm.TakeProgress(sources=((0, "stranger"),)), ()))
    assert list(pair.taker.pieces()) == []


def test_who_is_lost_in_the_same_moment_is_not_asked():
    pair = Pair(part(1, 4, 1.0)).ask()
    pair.taker.forget(["giver"])
    assert list(pair.taker.pieces()) == []


def test_only_the_driver_has_progress_taken_or_added():
    pair = Pair(part(1, 4, 1.0))
    assert not pair.taker.take(Delivery("giver", 0, dm.TakeProgress(sources=((0, "giver"),)), ()))
    pair.ask().pass_on()
    order = dm.AddProgress(ring=0, giver="giver", from_round=1, counted=())
    assert not pair.taker.take(Delivery("giver", 0, order, ()))
    assert pair.taker.due(0, 9) == []


def with_(header, **changes):
    fields = {
        name: getattr(header, name) for name in ("ring", "request", "updates", "round", "samples", "offset", "last")
    }
    return dm.ProgressPiece(**{**fields, **changes})


WRONG = {
    "float32": lambda header, tensors: (header, [tensors[0].double()]),
    "numbers from": lambda header, tensors: (with_(header, offset=header.offset + 1), tensors),
    "numbers of part": lambda header, tensors: (header, [tensors[0][:0]]),
    "before all of": lambda header, tensors: (with_(header, samples=4 + header.offset), tensors),
    "ended after": lambda header, tensors: (with_(header, last=True), tensors),
    "finite": lambda header, tensors: (header, [torch.full_like(tensors[0], float("nan"))]),
    "numbers beyond": lambda header, tensors: (header, [torch.full_like(tensors[0], -1e30)]),
    "samples": lambda header, tensors: (with_(header, samples=2**53), tensors),
}


@pytest.mark.parametrize("why", WRONG)
def test_garbage_is_refused_and_the_driver_told(why):
    pair = Pair(part(1, 4, 1.0)).ask().pass_on(WRONG[why])
    [told] = pair.told
    assert isinstance(told, dm.SourceFailed)
    assert (told.ring, told.donor) == (0, "giver")
    assert why in told.reason
    pair.add()
    assert pair.taker.due(0, 9) == []


@pytest.mark.parametrize("wire", ["exact", "float16"])
def test_whoever_adds_the_largest_numbers_and_weights_that_are_taken_can_still_contribute(wire):
    most = 1e15 if wire == "exact" else 500.0
    parts = [Part(number, MOST_SAMPLES // 65, torch.full((ELEMENTS,), most)) for number in range(MOST_PARTS)]
    pair = Pair(*parts)
    pair.taker = ProgressHanding(Rounds(wire=wire))
    pair.ask()
    for _ in range(20):
        pair.pass_on()
    assert pair.told == [dm.ProgressTaken(ring=0, giver="giver", updates=5)]
    vector, weight = added(torch.ones(ELEMENTS), 8.0, pair.add().taker.due(0, 1), float)
    require_weight(weight)
    assert why_not_summed(vector, weight, 10_000) is None
    sent = encode(wire, vector * weight, weight, None)
    decode(wire, sent, ELEMENTS, weight, torch.float32)  # which refuses what is beyond the form on the wire


def test_pieces_of_a_request_that_was_given_up_have_no_effect():
    pair = Pair(part(1, 4, 1.0)).ask().ask().pass_on(lambda header, tensors: (with_(header, request=1), tensors))
    assert pair.told == []


@pytest.mark.parametrize("weigh", [float, lambda samples: float(samples > 0)])
def test_the_mean_is_that_of_members_of_their_own(weigh):
    own, parts = torch.arange(4.0), [Part(0, 6, torch.ones(4)), Part(0, 2, torch.full((4,), -3.0))]
    mean, total = added(own, weigh(8), parts, weigh)
    weights = torch.tensor([weigh(8), weigh(6), weigh(2)])
    expected = (weights[:, None] * torch.stack([own, parts[0].progress, parts[1].progress])).sum(0) / weights.sum()
    torch.testing.assert_close(mean, expected)
    assert total == weights.sum()
    assert torch.equal(own, torch.arange(4.0))


def test_nothing_is_behind_it_where_nobody_has_trained():
    own = torch.zeros(3)
    assert added(own, 0.0, [Part(0, 0, torch.ones(3))], float) == (own, 0.0)
