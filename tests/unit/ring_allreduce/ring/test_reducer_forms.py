"""The reducer with direct exchange, unequal blocks and compressed wires: what holds for the plain ring."""

import pytest
import torch

from ring_allreduce.errors import ContributionRefused
from tests.unit.ring_allreduce.fleet import Fleet, spec

FORMS = {
    "direct": {"direct": True},
    "unequal": {"shares": (0.6, 0.0, 0.4)},
    "bfloat16": {"wire": "bfloat16"},
    "float16": {"wire": "float16"},
    "int8": {"wire": "int8"},
    "int4": {"wire": "int4"},
    "sparse": {"wire": "sparse"},
    "direct sparse": {"wire": "sparse", "direct": True},
    "direct int8": {"wire": "int8", "direct": True},
    "groups": {"groups": (0, 1)},
    "groups int8": {"wire": "int8", "groups": (0, 1)},
    "groups sparse": {"wire": "sparse", "groups": (0, 1)},
    "unequal bfloat16": {"wire": "bfloat16", "shares": (0.0, 0.0, 1.0)},
}


def parts_of(elements, rounds, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return {(r, name): torch.randn(elements, generator=generator) for r in range(1, rounds + 1) for name in "abc"}


def contribute(fleet, parts, number, weights):
    for name in fleet.reducers:
        fleet.reducers[name].contribute(number, "r", parts[number, name], weights[name])


@pytest.mark.parametrize("elements", [0, 1, 2, 1000])
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_all_hold_the_same_bytes_near_the_mean(form, elements):
    fleet, parts = Fleet([spec(elements=elements, chunk=300, **form)]), parts_of(elements, 1)
    weights = {"a": 1.0, "b": 2.0, "c": 5.0}
    contribute(fleet, parts, 1, weights)
    fleet.settle()
    averages = [fleet.results[name]["r", 1].average for name in "abc"]
    assert all(torch.equal(average, averages[0]) for average in averages)
    exact = sum(weights[name] * parts[1, name] for name in "abc") / 8.0
    tolerance = {"exact": 1e-5, "int4": 0.8, "sparse": 4.0}.get(form.get("wire", "exact"), 0.05)
    torch.testing.assert_close(averages[0], exact, rtol=0, atol=tolerance)


@pytest.mark.parametrize(
    "form",
    ["bfloat16", "float16", "int8", "int4", "sparse", "direct sparse", "direct int8", "groups int8", "groups sparse"],
)
def test_what_compression_takes_comes_back_in_later_rounds(form):
    rounds = 60
    fleet, parts = Fleet([spec(elements=500, chunk=100, **FORMS[form])]), parts_of(500, rounds)
    weights = {"a": 1.0, "b": 2.0, "c": 5.0}
    error, exact = torch.zeros(500, dtype=torch.float64), torch.zeros(500, dtype=torch.float64)
    worst = []
    for number in range(1, rounds + 1):
        contribute(fleet, parts, number, weights)
        fleet.settle()
        exact = sum(weights[name] * parts[number, name].double() for name in "abc") / 8.0
        error += fleet.results["a"]["r", number].average.double() - exact
        worst.append(error.abs().max().item())
        for reducer in fleet.reducers.values():
            reducer.commit(number)
    # The sum of all rounds' errors is what is carried now: it does not grow.
    assert max(worst[30:]) < 2.5 * max(worst[:10])


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_a_round_that_starts_again_carries_what_it_carried_before(form):
    form = {**form, "shares": None}
    parts, weights = parts_of(200, 2), {"a": 1.0, "b": 2.0, "c": 5.0}
    averages = []
    for loses in (False, True):
        fleet = Fleet([spec(elements=200, chunk=50, **form)])
        contribute(fleet, parts, 1, weights)
        fleet.settle()
        for reducer in fleet.reducers.values():
            reducer.commit(1)
        contribute(fleet, parts, 2, weights)
        if loses:
            for _ in range(2):
                fleet.turn("b")
        fleet.again.add(("r", 2))
        fleet.reform([spec(members="ab", elements=200, chunk=50, **form)], epoch=1)
        for name in "ab":
            fleet.reducers[name].restart(2)
        fleet.settle()
        averages.append(fleet.results["a"]["r", 2].average)
        assert torch.equal(averages[-1], fleet.results["b"]["r", 2].average)
    assert torch.equal(*averages), "what was lost on the way leaves no trace"


def test_a_member_with_another_wire_is_refused_with_its_name():
    fleet = Fleet([spec(members="ab")])
    other = Fleet([spec(members="ab", wire="bfloat16")])
    other.reducers["b"].contribute(1, "r", torch.ones(50), 1.0)
    (delivery, *_) = other.endpoints["a"].poll(0.0)
    with pytest.raises(ContributionRefused, match="bfloat16") as caught:
        fleet.reducers["a"].on_delivery(delivery)
    assert caught.value.member == "b"


def test_a_member_that_exchanges_in_another_way_is_refused_with_its_name():
    direct, ring = Fleet([spec(members="ab", direct=True)]), Fleet([spec(members="ab")])
    for mine, theirs in ((direct, ring), (ring, direct)):
        theirs.reducers["b"].contribute(1, "r", torch.ones(50), 1.0)
        (delivery, *_) = theirs.endpoints["a"].poll(0.0)
        with pytest.raises(ContributionRefused, match=r"chunk of|directly"):
            mine.reducers["a"].on_delivery(delivery)


@pytest.mark.parametrize("direct", [False, True])
def test_what_float16_cannot_carry_is_refused_with_the_name_of_who_gave_it(direct):
    fleet = Fleet([spec(wire="float16", direct=direct)])
    with pytest.raises(ContributionRefused, match=r"'b' gave.*beyond float16"):
        fleet.reducers["b"].contribute(1, "r", torch.full((50,), 7e4), 1.0)


@pytest.mark.parametrize(
    ("form", "came"),
    [
        ({}, 4 * 400),  # two thirds of 300 numbers, twice
        ({"direct": True}, 4 * 600),  # all of two others
        ({"wire": "bfloat16"}, 2 * 400),
        ({"shares": (0.6, 0.0, 0.4)}, None),
    ],
)
def test_each_round_knows_the_bytes_that_came_for_it_also_where_two_are_under_way(form, came):
    fleet, parts = Fleet([spec(elements=300, chunk=50, **form)], max_rounds=2), parts_of(300, 2)
    for number in (1, 2):
        contribute(fleet, parts, number, dict.fromkeys("abc", 1.0))
    fleet.settle()
    found = {name: [fleet.results[name]["r", number].received_bytes for number in (1, 2)] for name in "abc"}
    assert {name: sum(each) for name, each in found.items()} == {
        name: fleet.reducers[name].stats["r"].bytes_received for name in "abc"
    }
    assert all(first == second > 0 for first, second in found.values())
    assert came is None or {each[0] for each in found.values()} == {came}
