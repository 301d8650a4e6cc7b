"""The ring of a group: what comes before its round is called for, lists of several forms, and new members."""

import pytest
import torch

from ring_allreduce.errors import ContributionRefused, InvalidInput
from ring_allreduce.group import group_ring
from ring_allreduce.group.calls import Call, flatten
from ring_allreduce.group.control_messages import RING
from ring_allreduce.group.group_ring import GroupRing
from ring_allreduce.ring.messages import RING_KINDS, Chunk
from ring_allreduce.transport.endpoint import Delivery
from ring_allreduce.transport.in_process import InProcessNetwork
from ring_allreduce.transport.message import Codec, Unacceptable
from ring_timing.layout import MOST_CHUNK_BYTES_UNKNOWN


def call_of(*shapes, value=1.0):
    tensors = [torch.full(shape, value) for shape in shapes]
    return Call(tensors, flatten(tensors), 1.0, 10.0)


class Pair:
    """Two members' rings on one network."""

    def __init__(self, wire="exact"):
        network = InProcessNetwork()
        self.endpoints = {name: network.endpoint(name, Codec(RING_KINDS)) for name in "ab"}
        network.connect_all()
        self.rings = {name: GroupRing(endpoint, wire) for name, endpoint in self.endpoints.items()}
        for ring in self.rings.values():
            ring.reform(("a", "b"))

    def average(self, number, **calls):
        """One round; what each has."""
        results = {}
        for name, call in calls.items():
            self.rings[name].contribute(call, number)
        for _ in range(20):
            for name, call in calls.items():
                ring = self.rings[name]
                for delivery in [*ring.take_early(), *self.endpoints[name].poll(0.0)]:
                    ring.deliver(delivery, call, number, newcomer=False)
                ring.pump()
                results.update((name, result) for result in ring.finished())
        averages = {name: result.average.clone() for name, result in results.items()}
        for name in calls:
            self.rings[name].commit(number)
        return averages


def chunk(number, sender="b", epoch=0, ring=RING):
    header = Chunk(ring=ring, round=number, phase="direct", block=0, start=0, stop=4, weight=1.0)
    return Delivery(sender, epoch, header, (torch.full((4,), 3.0),))


def test_what_belongs_to_the_next_round_waits_for_its_call():
    ring = Pair().rings["a"]
    ring.deliver(chunk(2), call_of((9,)), 1, newcomer=False)
    ring.deliver(chunk(3), call_of((9,)), 1, newcomer=False)
    assert [delivery.message.round for delivery in ring.take_early()] == [2]
    ring.deliver(chunk(3), call_of((9,)), 1, newcomer=True)
    assert [delivery.message.round for delivery in ring.take_early()] == [3]


def test_what_belongs_to_the_round_under_way_is_taken_at_once():
    ring, call = Pair().rings["a"], call_of((4,))
    ring.contribute(call, 1)
    ring.deliver(chunk(1), call, 1, newcomer=False)
    assert [result.average.tolist() for result in ring.finished()] == [[2.0] * 4]
    assert ring.take_early() == []


def test_what_is_of_another_epoch_or_ring_or_stranger_is_not_kept():
    ring = Pair().rings["a"]
    for delivery in (chunk(2, epoch=1), chunk(2, sender="z"), chunk(2, ring="other")):
        ring.deliver(delivery, call_of((9,)), 1, newcomer=False)
    assert ring.take_early() == []


def test_what_does_not_fit_is_refused_with_its_sender():
    ring, call = Pair().rings["a"], call_of((9,))
    ring.contribute(call, 1)
    with pytest.raises(ContributionRefused) as caught:
        ring.deliver(chunk(1), call, 1, newcomer=False)
    assert caught.value.member == "b"


@pytest.mark.parametrize("contributed", [False, True])
def test_what_no_member_sends_is_refused_with_its_sender_before_the_own_part_is_there_too(contributed):
    ring, call = Pair().rings["a"], call_of((9,))
    if contributed:
        ring.contribute(call, 1)
    with pytest.raises(ContributionRefused) as caught:
        ring.deliver(Delivery("b", 0, Unacceptable(reason="a weight of 1e308"), ()), call, 0, newcomer=False)
    assert (caught.value.member, caught.value.reason) == ("b", "a weight of 1e308")


def test_each_form_has_a_reducer_and_compression_gives_back_to_its_own():
    pair, value = Pair("int8"), torch.linspace(-1.0, 1.0, 300) ** 3
    sums = {form: torch.zeros(300, dtype=torch.float64) for form in ((300,), (3, 100))}
    number = 0
    for _ in range(30):
        for form in sums:
            number += 1
            tensor = value.reshape(form)
            calls = {name: Call([tensor], flatten([tensor]), 1.0, 10.0) for name in "ab"}
            sums[form] += pair.average(number, **calls)["a"]
    for total in sums.values():
        assert (total / 30 - value).abs().max() < 2 / 254 / 30
    assert pair.rings["a"].statistics().rounds == 60


@pytest.mark.parametrize(("wire", "kept"), [("exact", 1), ("int8", group_ring.MOST_FORMS)])
def test_only_so_many_forms_are_remembered_and_all_are_counted(wire, kept):
    pair = Pair(wire)
    for number in range(1, 8):
        calls = {name: call_of((number,)) for name in "ab"}
        assert pair.average(number, **calls)["b"].tolist() == pytest.approx([1.0] * number)
    ring = pair.rings["a"]
    assert len(ring.forms) == kept
    assert ring.statistics().rounds == 7


def test_a_form_that_comes_back_after_others_have_left_is_averaged_among_those_who_stay():
    pair = Pair("int8")
    pair.average(1, a=call_of((5,)), b=call_of((5,), value=3.0))
    pair.average(2, a=call_of((6,)), b=call_of((6,), value=3.0))
    pair.endpoints["a"].epoch = 1
    pair.rings["a"].reform(("a",))
    assert pair.average(3, a=call_of((5,), value=7.0))["a"].tolist() == pytest.approx([7.0] * 5, abs=0.1)


def test_nothing_can_be_handed_on_before_anything_was_contributed():
    ring = Pair().rings["a"]
    for order in (lambda: ring.hand_on(1, ("b",)), lambda: ring.accept(1, "b"), lambda: ring.restart(1)):
        with pytest.raises(InvalidInput, match="nothing was contributed here yet"):
            order()
    assert ring.progress(1) is None
    assert ring.finished() == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_ring_of_a_group_follows_from_what_all_members_know(dtype):
    small, large = (group_ring.ring_spec("r", ("a", "b", "c", "d"), n, dtype, "exact") for n in (100, 10**8))
    assert (small.direct, large.direct) == (True, False)
    assert small.chunk_elements * dtype.itemsize <= MOST_CHUNK_BYTES_UNKNOWN
    assert group_ring.ring_spec("r", ("a", "b"), 10**8, dtype, "exact").direct, "of two each sends to the other"
