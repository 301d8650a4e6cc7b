"""The reducer when a whole average is handed on: byte for byte, from the one who was named, and nothing else."""

import pytest
import torch

from ring_allreduce.errors import ContributionRefused, InvalidInput
from ring_allreduce.ring.messages import HandedOn
from ring_allreduce.transport.stats import Lane
from tests.unit.ring_allreduce.fleet import Fleet, contribute, spec


def piece(**changes):
    fields = {"ring": "r", "round": 1, "start": 0, "stop": 7, "total_weight": 3.0, "counters": ()}
    return HandedOn(**{**fields, **changes})


def lose_a_member_when_only_a_holds_the_average():
    fleet = Fleet([spec(members="abc", elements=40)])
    contribute(fleet, "abc", elements=40)
    b = fleet.reducers["b"]
    while not fleet.results["a"]:
        fleet.turn("a")
        fleet.turn("c")
        for delivery in fleet.endpoints["b"].poll(0.0):
            at = b.progress()["r", 1]
            if at.received < at.expected - 1:  # the last chunk does not reach b
                b.on_delivery(delivery)
    assert not fleet.results["b"]
    fleet.reform([spec(members="ab", elements=40)], epoch=1)
    return fleet


@pytest.mark.parametrize("told_first", ["holder", "taker"])
def test_a_whole_average_is_handed_on_byte_for_byte(told_first):
    fleet = lose_a_member_when_only_a_holds_the_average()
    if told_first == "holder":
        fleet.reducers["a"].hand_on(1, "r", ["b"])
        fleet.settle()
        fleet.reducers["b"].accept(1, "r", "a")
    else:
        fleet.reducers["b"].accept(1, "r", "a")
        assert fleet.reducers["b"].progress()["r", 1].waits_for == "a"
        fleet.reducers["a"].hand_on(1, "r", ["b"])
    fleet.settle()
    whole, handed = (fleet.results[name]["r", 1] for name in "ab")
    assert torch.equal(handed.average.view(torch.int32), whole.average.view(torch.int32))
    assert (handed.total_weight, handed.counters) == (whole.total_weight, whole.counters)
    assert handed.received_bytes == whole.average.nbytes
    assert fleet.reducers["b"].holding() == [("r", 1)]
    assert fleet.reducers["b"].progress() == {}


def test_progress_of_a_handed_on_average_counts_its_chunks():
    fleet = Fleet([spec(members="ab")])
    contribute(fleet, "b")
    fleet.reform([spec(members="ab")], epoch=1)
    fleet.reducers["b"].accept(1, "r", "a")
    fleet.endpoints["a"].send("b", Lane.BULK, piece(counters=(97,)), [torch.ones(7)])
    fleet.endpoints["a"].send("b", Lane.BULK, piece(counters=(97,)), [torch.ones(7)])
    fleet.turn("b")
    at = fleet.reducers["b"].progress()["r", 1]
    assert (at.received, at.expected, at.sent, at.waits_for) == (1, 8, 0, "a")
    assert fleet.reducers["b"].drops == {"a chunk that was there before": 1}


@pytest.mark.parametrize(
    ("sender", "message", "tensors", "reason"),
    [
        ("c", piece(), [torch.ones(7)], "takes the average from 'a'"),
        ("a", piece(start=1, stop=8), [torch.ones(7)], "no chunk of"),
        ("a", piece(start=7, stop=0), [torch.ones(7)], "no chunk of"),
        ("a", piece(total_weight=float("nan")), [torch.ones(7)], r"\$\.total_weight"),
        ("a", piece(start=7, stop=14, total_weight=4.0), [torch.ones(7)], "a total of 4.0"),
        ("a", piece(start=7, stop=14, counters=(1,)), [torch.ones(7)], "a total of 3.0"),
        ("a", piece(start=7, stop=14), [torch.full((7,), float("inf"))], "infinite"),
        ("a", piece(start=7, stop=14), [torch.ones(6)], r"\(6,\)"),
        ("a", piece(start=7, stop=14), [torch.ones(7).double()], "float64"),
        ("a", piece(start=7, stop=14), [], "0 tensors"),
        ("a", piece(ring="x"), [torch.ones(7)], "not in the ring"),
        ("a", piece(round=3), [torch.ones(7)], "rounds ahead"),
    ],
)
def test_a_wrong_piece_is_refused_with_its_sender_and_changes_nothing(sender, message, tensors, reason):
    fleet = Fleet([spec()])
    fleet.reducers["b"].accept(1, "r", "a")
    fleet.endpoints["a"].send("b", Lane.BULK, piece(), [torch.ones(7)])
    fleet.turn("b")
    before = fleet.reducers["b"].progress()
    fleet.endpoints[sender].send("b", Lane.BULK, message, tensors)
    (delivery,) = fleet.endpoints["b"].poll(0.0)
    with pytest.raises(ContributionRefused, match=reason) as caught:
        fleet.reducers["b"].on_delivery(delivery)
    assert caught.value.member == sender
    assert fleet.reducers["b"].progress() == before


def test_pieces_for_a_member_that_holds_the_average_have_no_effect():
    fleet = Fleet([spec(members="ab")])
    contribute(fleet, "ab")
    fleet.settle()
    fleet.reducers["a"].hand_on(1, "r", ["b"])
    fleet.settle()
    assert fleet.reducers["b"].drops == {"of a finished round": 8}
    assert fleet.reducers["b"].progress() == {}


def test_pieces_of_another_epoch_have_no_effect():
    fleet = Fleet([spec(members="ab")])
    fleet.endpoints["a"].epoch = 1
    fleet.endpoints["a"].send("b", Lane.BULK, piece(), [torch.ones(7)])
    fleet.turn("b")
    assert fleet.reducers["b"].drops == {"epoch 1, not 0": 1}


@pytest.mark.parametrize(("holder", "number"), [("a", 1), ("x", 1), ("b", 9)])
def test_accepts_from_another_member_and_in_time_only(holder, number):
    with pytest.raises(InvalidInput):
        Fleet([spec()]).reducers["a"].accept(number, "r", holder)


def test_hands_on_only_what_is_whole():
    reducer = Fleet([spec()]).reducers["a"]
    with pytest.raises(InvalidInput, match="not whole here"):
        reducer.hand_on(1, "r", ["b"])
