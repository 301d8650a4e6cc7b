"""The reducer when members are lost: nothing counted twice or lost, nothing leaks, early and late words included."""

import gc
import random
import weakref

import pytest
import torch

from ring_allreduce.errors import ContributionRefused, InvalidInput
from ring_allreduce.messages import HandedOn
from ring_allreduce.transport.stats import Lane
from tests.unit.ring_allreduce.fleet import Fleet, header, spec


def part(name, elements=50):
    return torch.full((elements,), float(ord(name) - ord("a") + 1))


def contribute(fleet, names, number=1, ring="r", elements=50):
    for name in names:
        fleet.reducers[name].contribute(number, ring, part(name, elements), 1.0, (ord(name),))


def piece(**changes):
    fields = {"ring": "r", "round": 1, "start": 0, "stop": 7, "total_weight": 3.0, "counters": ()}
    return HandedOn(**{**fields, **changes})


@pytest.mark.parametrize("turns", range(12))
def test_a_round_starts_again_without_the_lost_member_from_what_was_contributed(turns):
    fleet = Fleet([spec()])
    contribute(fleet, "abc")
    for turn in range(turns):
        fleet.turn("abc"[turn % 3])
    fleet.reform([spec(members="ac")], epoch=1)
    fleet.again.add(("r", 1))
    for name in "ac":
        assert fleet.reducers[name].contributed() == [("r", 1)]
        assert fleet.endpoints[name].poll(0.0) == [], "nothing is sent before restart()"
        fleet.reducers[name].restart(1)
        fleet.turn("c")  # so that one is told earlier than the other
    fleet.settle()
    for name in "ac":
        result = fleet.results[name]["r", 1]
        assert result.average.tolist() == [2.0] * 50
        assert (result.total_weight, result.counters) == (2.0, (ord("c"),))
        assert fleet.reducers[name].progress() == {}


def test_a_member_that_holds_the_average_starts_again_when_told_even_after_others_began():
    fleet = Fleet([spec()])
    contribute(fleet, "abc")
    fleet.settle()
    fleet.reform([spec(members="ab")], epoch=1)
    fleet.again.add(("r", 1))
    assert [fleet.reducers[name].holding() for name in "ab"] == [[("r", 1)]] * 2
    fleet.reducers["a"].restart(1)
    fleet.turn("b")
    assert fleet.reducers["b"].holding() == [("r", 1)], "only its own restart() makes it forget"
    fleet.reducers["b"].restart(1)
    fleet.settle()
    assert [fleet.results[name]["r", 1].average[0].item() for name in "ab"] == [1.5, 1.5]


def test_an_average_that_was_not_taken_yet_is_not_told_when_its_round_starts_again():
    fleet = Fleet([spec(members="ab")])
    contribute(fleet, "ab")
    for _ in range(20):
        for name in "ab":
            for delivery in fleet.endpoints[name].poll(0.0):
                fleet.reducers[name].on_delivery(delivery)
    fleet.reform([spec(members="a")], epoch=1)
    fleet.reducers["a"].restart(1)
    (result,) = fleet.reducers["a"].finished()
    assert torch.equal(result.average, part("a"))


def test_a_round_without_my_contribution_waits_for_it():
    fleet = Fleet([spec()])
    contribute(fleet, "ab")
    fleet.reform([spec(members="bc")], epoch=1)
    for name in "bc":
        fleet.reducers[name].restart(1)
    fleet.settle()
    contribute(fleet, "c")
    fleet.settle()
    assert fleet.results["b"]["r", 1].average[0].item() == 2.5


def test_a_lone_survivor_has_its_own_contribution_bit_by_bit():
    fleet = Fleet([spec()])
    vector = torch.randn(50, generator=torch.Generator().manual_seed(1))
    fleet.reducers["b"].contribute(1, "r", vector, 0.1, (7,))
    contribute(fleet, "ac")
    fleet.turn("b")
    fleet.reform([spec(members="b")], epoch=1)
    fleet.reducers["b"].restart(1)
    fleet.settle()
    assert torch.equal(fleet.results["b"]["r", 1].average.view(torch.int32), vector.view(torch.int32))


def test_what_was_sent_in_an_older_epoch_has_no_effect_in_the_next():
    fleet = Fleet([spec()])
    contribute(fleet, "abc")  # the chunks of all are on their way
    fleet.reform([spec(members="ab")], epoch=1)
    for name in "ab":
        fleet.reducers[name].restart(1)
    fleet.settle()
    assert fleet.results["a"]["r", 1].average.tolist() == [1.5] * 50
    assert fleet.endpoints["b"].stats.dropped["older_epoch"] > 0


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
        assert fleet.reducers["b"].waiting_for() == [("r", 1, "a")]
        fleet.reducers["a"].hand_on(1, "r", ["b"])
    fleet.settle()
    whole, handed = (fleet.results[name]["r", 1] for name in "ab")
    assert torch.equal(handed.average.view(torch.int32), whole.average.view(torch.int32))
    assert (handed.total_weight, handed.counters) == (whole.total_weight, whole.counters)
    assert fleet.reducers["b"].holding() == [("r", 1)]
    assert fleet.reducers["b"].progress() == {}


def test_progress_of_a_handed_on_average_counts_its_chunks():
    fleet = Fleet([spec(members="ab")])
    contribute(fleet, "b")
    fleet.reform([spec(members="ab")], epoch=1)
    fleet.reducers["b"].accept(1, "r", "a")
    fleet.endpoints["a"].send("b", Lane.BULK, piece(), [torch.ones(7)])
    fleet.endpoints["a"].send("b", Lane.BULK, piece(), [torch.ones(7)])
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
        ("a", piece(total_weight=float("nan")), [torch.ones(7)], "total weight nan"),
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


def test_commit_forgets_contributions_averages_and_strays():
    fleet = Fleet([spec(members="ab", elements=50), spec("q", "ab", elements=30)], max_rounds=2)
    for number in (1, 2):
        contribute(fleet, "ab", number)
        contribute(fleet, "ab", number, "q", 30)
    fleet.settle()
    kept = weakref.ref(fleet.reducers["a"]._kept.contributions["r", 1])
    for name in "ab":
        fleet.results[name].clear()
        fleet.reducers[name].commit(1)
    gc.collect()
    reducer = fleet.reducers["a"]
    assert reducer.holding() == reducer.contributed() == [("q", 2), ("r", 2)]
    fleet.endpoints["b"].send("a", Lane.BULK, header(), [torch.ones(7)])
    fleet.turn("a")
    assert reducer.drops == {"of a finished round": 1}
    assert kept() is None
    with pytest.raises(InvalidInput, match="is finished"):
        reducer.contribute(1, "r", part("a"), 1.0)
    with pytest.raises(InvalidInput, match="was committed"):
        reducer.restart(1)


def test_the_memory_of_committed_averages_is_used_again_and_that_of_others_is_not():
    fleet = Fleet([spec(members="ab")], max_rounds=2)
    places = {}
    for number in (1, 2, 3):
        contribute(fleet, "ab", number)
        fleet.settle()
        if number == 2:
            fleet.reducers["a"].commit(1)
            fleet.reducers["b"].commit(1)
        places[number] = fleet.results["a"]["r", number].average.data_ptr()
    assert places[1] == places[3] != places[2]


def test_a_round_that_is_not_whole_cannot_be_committed():
    fleet = Fleet([spec(members="ab")])
    contribute(fleet, "a")
    with pytest.raises(InvalidInput, match="not whole here"):
        fleet.reducers["a"].commit(1)


def test_reform_keeps_the_vectors_form():
    reducer = Fleet([spec()]).reducers["a"]
    for wrong in ([spec(elements=51)], [spec("q")], [], [spec(), spec()], [spec(members="bc")]):
        with pytest.raises(InvalidInput):
            reducer.reform(wrong)


@pytest.mark.parametrize(("holder", "number"), [("a", 1), ("x", 1), ("b", 9)])
def test_accepts_from_another_member_and_in_time_only(holder, number):
    with pytest.raises(InvalidInput):
        Fleet([spec()]).reducers["a"].accept(number, "r", holder)


def test_hands_on_only_what_is_whole():
    reducer = Fleet([spec()]).reducers["a"]
    with pytest.raises(InvalidInput, match="not whole here"):
        reducer.hand_on(1, "r", ["b"])


def test_a_contribution_is_given_once_also_in_the_next_epoch():
    fleet = Fleet([spec()])
    contribute(fleet, "a")
    fleet.reform([spec(members="ab")], epoch=1)
    with pytest.raises(InvalidInput, match="once"):
        contribute(fleet, "a")


@pytest.mark.parametrize("seed", range(20))
def test_losses_at_any_moment_leave_the_survivors_with_the_mean_of_their_own(seed):
    """Member after member is lost, in the middle of two rounds of two rings; the last epochs begin in any order."""
    chance = random.Random(seed)
    members = "abcde"
    specs = [spec("r", members, 40), spec("q", members, 30)]
    fleet = Fleet(specs, max_rounds=2)
    todo = [(name, ring, number) for name in members for ring in "rq" for number in (1, 2)]
    chance.shuffle(todo)
    for epoch, survivors in enumerate(("abde", "bde", "be"), start=1):
        for _ in range(chance.randrange(8)):
            if todo:
                name, ring, number = todo.pop()
                if name in fleet.reducers:
                    contribute(fleet, name, number, ring, {"r": 40, "q": 30}[ring])
        for _ in range(chance.randrange(30)):
            fleet.turn(chance.choice(sorted(fleet.endpoints)))
        fleet.reform([spec("r", survivors, 40), spec("q", survivors, 30)], epoch)
        fleet.again |= {(ring, number) for ring in "rq" for number in (1, 2)}
        order = [(name, number) for name in survivors for number in (1, 2)]
        chance.shuffle(order)
        for name, number in order:
            fleet.reducers[name].restart(number)
            fleet.turn(chance.choice(survivors))
    for name, ring, number in todo:
        if name in fleet.reducers:
            contribute(fleet, name, number, ring, {"r": 40, "q": 30}[ring])
    fleet.settle()
    for name in "be":
        assert fleet.reducers[name].progress() == {}
        for key in (("r", 1), ("r", 2), ("q", 1), ("q", 2)):
            result = fleet.results[name][key]
            assert result.average.unique().tolist() == [3.5]
            assert result.total_weight == 2.0
