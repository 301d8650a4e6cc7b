"""The reducer when members are lost: nothing counted twice or lost, nothing leaks, early and late words included."""

import gc
import random
import weakref

import numpy as np
import pytest
import torch

from ring_allreduce.errors import InvalidInput
from ring_allreduce.transport.stats import Lane
from tests.unit.ring_allreduce.fleet import Fleet, contribute, header, part, spec


@pytest.mark.parametrize("turns", range(12))
def test_a_round_starts_again_without_the_lost_member_from_what_was_contributed(turns):
    fleet = Fleet([spec()])
    contribute(fleet, "abc")
    for turn in range(turns):
        fleet.turn("abc"[turn % 3])
    fleet.reform([spec(members="ac")], epoch=1)
    fleet.again.add(("r", 1))
    for name in "ac":
        sent_in = {delivery.epoch for delivery in fleet.endpoints[name].poll(0.0)}
        assert sent_in <= {0}, "nothing is sent before restart()"
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
    assert fleet.reducers["b"].drops["epoch 0, not 1"] > 0


def test_commit_forgets_contributions_averages_and_strays():
    fleet = Fleet([spec(members="ab", elements=50), spec("q", "ab", elements=30)], max_rounds=2)
    numbers = np.ones(50, dtype=np.float32)
    kept = weakref.ref(numbers)
    fleet.reducers["a"].contribute(1, "r", torch.from_numpy(numbers), 1.0, (1,))
    del numbers
    contribute(fleet, "b", 1)
    contribute(fleet, "ab", 1, "q", 30)
    for ring, elements in (("r", 50), ("q", 30)):
        contribute(fleet, "ab", 2, ring, elements)
    fleet.settle()
    gc.collect()
    assert kept() is not None, "a contribution is kept until its round is committed"
    for name in "ab":
        fleet.results[name].clear()
        fleet.reducers[name].commit(1)
    gc.collect()
    reducer = fleet.reducers["a"]
    assert reducer.holding() == [("q", 2), ("r", 2)]
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


@pytest.mark.parametrize("whole", [False, True])
def test_what_an_epoch_that_ended_has_lent_is_not_written_to_in_the_next(whole):
    """b is late: it still reads what a sent in the first epoch when a is at work in the second."""
    fleet = Fleet([spec(elements=12, chunk=4)])
    for name in "abc":
        fleet.reducers[name].contribute(1, "r", part(name, 12), 2.0)
    fleet.turn("a")  # c's part has come, and a's sum has gone to b
    while whole and not fleet.reducers["a"].holding():
        for name in "bca":
            fleet.turn(name)
    late = fleet.endpoints["b"].poll(0.0)
    read = [delivery.tensors[0].clone() for delivery in late if delivery.sender == "a"]
    assert read
    fleet.endpoints["a"].epoch = 1
    reducer = fleet.reducers["a"]
    reducer.reform([spec(members="ba", elements=12, chunk=4)])
    reducer.restart(1)
    assert reducer.progress()["r", 1].sent > 0
    for before, delivery in zip(read, (delivery for delivery in late if delivery.sender == "a"), strict=True):
        assert torch.equal(delivery.tensors[0], before)


def test_the_form_in_which_numbers_travel_stays_the_same():
    fleet = Fleet([spec()])
    with pytest.raises(InvalidInput, match="cannot become others"):
        fleet.reducers["a"].reform([spec(wire="int8")])
