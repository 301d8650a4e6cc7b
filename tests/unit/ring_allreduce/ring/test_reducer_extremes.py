"""A member that lies: whatever one field or number says, an innocent reducer refuses it by the liar's name, or goes on.

It never raises anything else, and never sends or keeps a number that is not finite.
"""

import math

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ring_allreduce.errors import ContributionRefused
from ring_allreduce.ring.messages import RING_KINDS, Chunk, HandedOn
from ring_allreduce.ring.wire_forms import WIRES, encode
from ring_allreduce.transport import Delivery, Lane, Unacceptable
from tests.support.wire import mutations, unbounded
from tests.unit.ring_allreduce.fleet import Fleet, header, spec

MEMBERS = "ab"
EXAMPLES = [
    header(block=0, start=0, stop=7),
    header(phase="gather", block=1, start=25, stop=32),
    header(phase="direct", block=0, start=0, stop=7),
    HandedOn(ring="r", round=1, start=0, stop=7, total_weight=3.0),
]
NUMBERS = (0.0, 1.0, -2.5, 65504.0, 1e20, 1.6e38, -3.3e38, 1e-40)


@pytest.mark.parametrize("kind", RING_KINDS)
def test_each_field_has_bounds(kind):
    assert unbounded(kind) == []


def innocent(wire, *, direct, weight, contributed):
    fleet = Fleet([spec(members=MEMBERS, wire=wire, direct=direct)], max_rounds=2)
    if contributed:
        fleet.reducers["b"].contribute(1, "r", torch.linspace(-1.0, 1.0, 50), weight)
    return fleet


def take(fleet):
    """b takes all that has come; the reasons for which it refused something, which is never held against b."""
    return [
        reason
        for delivery in fleet.endpoints["b"].poll(0.0)
        if (reason := refusal(lambda delivery=delivery: fleet.reducers["b"].on_delivery(delivery)))
    ]


def refusal(act):
    """Why `act` refused something of a's; None when it refused nothing."""
    try:
        act()
    except ContributionRefused as error:
        refused = error
    else:
        return None
    assert refused.member == "a"
    return refused.reason


def require_finite(fleet):
    for delivery in fleet.endpoints["a"].poll(0.0):
        assert all(torch.isfinite(tensor.float()).all() for tensor in delivery.tensors)
        assert math.isfinite(delivery.message.weight)
    for result in fleet.reducers["b"].finished():
        assert torch.isfinite(result.average).all()


@settings(max_examples=200)
@given(
    mutations(EXAMPLES),
    st.sampled_from(WIRES),
    st.booleans(),
    st.sampled_from([0.0, 1.0, 1e12]),
    st.booleans(),
)
def test_a_lying_header_is_refused_or_does_no_harm(message, wire, direct, weight, contributed):
    fleet = innocent(wire, direct=direct, weight=weight, contributed=contributed)
    tensors = encode(wire if isinstance(message, Chunk) else "exact", torch.ones(7), 1.0, None)
    fleet.endpoints["a"].send("b", Lane.BULK, message, tensors)
    take(fleet)
    if not contributed:
        refusal(lambda: fleet.reducers["b"].contribute(1, "r", torch.linspace(-1.0, 1.0, 50), weight))
    require_finite(fleet)


@settings(max_examples=300)
@example(numbers=[1.6e38] * 7, said=0.0, wire="exact", direct=False, weight=1e-12, contributed=False)
@example(numbers=[1.6e38] * 7, said=0.0, wire="exact", direct=True, weight=1e-12, contributed=True)
@given(
    numbers=st.lists(st.sampled_from(NUMBERS), min_size=7, max_size=7),
    said=st.sampled_from([0.0, 1e-12, 1e-6, 1.0, 1e6, 1e12]),
    wire=st.sampled_from(WIRES),
    direct=st.booleans(),
    weight=st.sampled_from([0.0, 1e-12, 1.0, 640.0, 1e12]),
    contributed=st.booleans(),
)
def test_extreme_numbers_are_refused_or_stay_finite(numbers, said, wire, direct, weight, contributed):
    """Each number is finite, so decoding passes it; what becomes of it here must be, too."""
    fleet = innocent(wire, direct=direct, weight=weight, contributed=contributed)
    phase = "direct" if direct else "reduce"
    lie = header(phase=phase, block=0, start=0, stop=7, weight=said)
    fleet.endpoints["a"].send("b", Lane.BULK, lie, encode(wire, torch.tensor(numbers), said, None))
    take(fleet)
    if not contributed:
        refusal(lambda: fleet.reducers["b"].contribute(1, "r", torch.linspace(-1.0, 1.0, 50), weight))
    require_finite(fleet)


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("phase", ["reduce", "gather", "direct"])
def test_a_weight_that_overflows_is_held_against_who_said_it(wire, phase):
    fleet = innocent(wire, direct=phase == "direct", weight=1.0, contributed=True)
    lie = header(phase=phase, block=0, start=0, stop=7, weight=1e308)
    fleet.endpoints["a"].send("b", Lane.BULK, lie, encode(wire, torch.ones(7), 1.0, None))
    (reason,) = take(fleet)
    assert "$.weight" in reason


def test_what_no_member_sends_is_held_against_members_of_this_epoch_only():
    fleet = innocent("exact", direct=False, weight=1.0, contributed=False)
    reducer, lie = fleet.reducers["b"], Unacceptable(reason="a weight of 1e308")
    assert not reducer.on_delivery(Delivery("driver", 0, lie, ()))
    with pytest.raises(ContributionRefused, match="what 'a' gave: a weight of 1e308"):
        reducer.on_delivery(Delivery("a", 0, lie, ()))
    fleet.endpoints["b"].epoch = 1
    reducer.reform([spec(members=MEMBERS)])
    assert reducer.on_delivery(Delivery("a", 0, lie, ()))
    assert reducer.drops == {"epoch 0, not 1": 1}
