"""The arithmetic of instructions on chunks where they lie, exact and compressed."""

import pytest
import torch

from ring_allreduce.errors import InvalidInput
from ring_allreduce.ring.events import (
    AddOwn,
    DivideChunk,
    HoldChunk,
    ScaleOwn,
    SendChunk,
    StoreChunk,
    StoreOwn,
    SumChunks,
    TakeHeld,
)
from ring_allreduce.ring.executor import BufferPool, Payload, RingContribution, RingExecutor, RingSpec, require_usable
from ring_allreduce.ring.wire_forms import decode

OWN = torch.tensor([1.0, 2.0, 3.0, 4.0])


def flight(weight=10.0, carry=None, own=OWN, **changes):
    spec = RingSpec("r", ("a", "b"), 4, 2, **changes)
    new = RingExecutor(spec, spec.machine("a", 1, 0), BufferPool())
    new.begin(RingContribution(own, weight, (), carry))
    return new


def send(start=0, stop=2, weight=1.0, phase="reduce"):
    return SendChunk("b", phase, 0, start, stop, weight, ())


def test_a_sum_is_made_where_its_average_will_be_and_sent_from_there():
    member, arrived = flight(), torch.tensor([5.0, 6.0])
    member.arrive(Payload(arrived, [arrived]))
    member.compute(AddOwn(2, 4))
    (sent,) = member.tensors(send(2, 4))
    assert sent.tolist() == [35.0, 46.0]
    assert sent.data_ptr() == member.room()[2:].data_ptr()
    member.compute(DivideChunk(2, 4, 2.0))
    member.compute(StoreChunk(2, 4))
    (sent,) = member.tensors(send(2, 4))
    assert sent.tolist() == member.room()[2:].tolist() == [17.5, 23.0]
    assert sent.data_ptr() == member.room()[2:].data_ptr()
    assert arrived.tolist() == [5.0, 6.0], "what arrived may lie in its sender's memory"


def test_a_gathered_chunk_goes_on_from_the_average():
    member, arrived = flight(), torch.tensor([5.0, 6.0])
    member.arrive(Payload(arrived, [arrived]))
    member.compute(StoreChunk(2, 4))
    (sent,) = member.tensors(send(2, 4, phase="gather"))
    assert sent.tolist() == [5.0, 6.0]
    assert sent.data_ptr() == member.room()[2:].data_ptr() != arrived.data_ptr()


def test_in_a_direct_exchange_my_weighted_part_outlives_my_average():
    member = flight(direct=True)
    member.compute(ScaleOwn(0, 2))
    (sent,) = member.tensors(send(phase="direct"))
    member.compute(HoldChunk("a", 0, 0, 2))
    member.arrive(Payload(torch.tensor([7.0, 8.0]), None))
    member.compute(HoldChunk("b", 0, 0, 2))
    member.compute(SumChunks(0, 2, 1.0))
    assert member.room()[:2].tolist() == [17.0, 28.0]
    assert sent.tolist() == [10.0, 20.0], "others may not have read it yet"


def test_my_own_part_is_not_copied_at_weight_one_and_never_written_to():
    own = OWN.clone()
    member = flight(weight=1.0, own=own)
    member.compute(ScaleOwn(0, 2))
    (sent,) = member.tensors(send())
    assert sent.data_ptr() == own.data_ptr()
    member = flight(own=own)
    member.compute(ScaleOwn(0, 2))
    assert member.tensors(send())[0].tolist() == [10.0, 20.0]
    assert own.tolist() == OWN.tolist()


def test_held_chunks_come_back_and_are_added_in_the_members_order():
    member = flight(direct=True)
    member.arrive(Payload(torch.tensor([7.0, 8.0]), None))
    member.compute(HoldChunk("b", 0, 0, 2))
    member.compute(ScaleOwn(0, 2))
    member.compute(HoldChunk("a", 0, 0, 2))
    member.compute(SumChunks(0, 2, 4.0))
    assert member.room()[:2].tolist() == [4.25, 7.0]
    member.arrive(Payload(torch.tensor([1.0, 2.0]), None))
    member.compute(HoldChunk("b", 1, 2, 4))
    member.compute(ScaleOwn(0, 2))
    member.compute(TakeHeld("b", 1, 2, 4))
    member.compute(StoreChunk(2, 4))
    assert member.room()[2:].tolist() == [1.0, 2.0]


def test_a_total_of_zero_gives_zeros():
    member = flight()
    member.arrive(Payload(torch.tensor([5.0, 6.0]), None))
    member.compute(DivideChunk(0, 2, 0.0))
    member.compute(StoreChunk(0, 2))
    assert member.room()[:2].tolist() == [0.0, 0.0]


def test_what_was_carried_to_a_round_without_weight_is_carried_on():
    member = flight(weight=0.0, carry=torch.ones(4), wire="int8")
    member.arrive(Payload(torch.tensor([5.0, 6.0]), None))
    member.compute(AddOwn(0, 2))
    member.compute(DivideChunk(0, 2, 0.0))
    assert member.residual.tolist() == [6.0, 7.0, 0.0, 0.0]


def test_a_lone_members_average_is_its_own_vector_and_its_carry_goes_on():
    carry = torch.ones(4)
    member = flight(carry=carry, wire="int8")
    member.compute(StoreOwn())
    assert member.average is OWN
    assert member.residual is carry


@pytest.mark.parametrize("wire", ["bfloat16", "float16", "int8"])
def test_what_compression_takes_is_the_residual_and_what_was_carried_is_sent(wire):
    own, carry = torch.tensor([1.001, 2.003, -3.007, 4.011]), torch.tensor([0.5, 0.25, -0.125, 1.0])
    spec = RingSpec("r", ("a", "b"), 4, 4, wire=wire)
    member = RingExecutor(spec, spec.machine("a", 1, 0), BufferPool())
    member.begin(RingContribution(own, 3.0, (), carry))
    member.compute(ScaleOwn(0, 4))
    sent = decode(wire, member.tensors(send(0, 4, weight=3.0)), 4, 3.0, torch.float32)
    torch.testing.assert_close(sent + member.residual, 3.0 * own + carry)
    assert member.residual.any()
    # The block's owner: the mean's own loss counts with the total weight.
    arrived = torch.tensor([1.0, 2.0, 3.0, 4.0])
    member.residual.zero_()
    member.arrive(Payload(arrived.clone(), None))
    member.compute(AddOwn(0, 4))
    whole = arrived + 3.0 * own + carry
    member.compute(DivideChunk(0, 4, 7.0))
    encoded = member.tensors(send(0, 4, weight=7.0, phase="gather"))
    assert encoded is member.tensors(send(0, 4, weight=7.0, phase="gather")), "encoded once: all decode the same"
    member.compute(StoreChunk(0, 4))
    torch.testing.assert_close(member.room() * 7.0 + member.residual, whole)


def test_usable_rings():
    good = RingSpec("r", ("a", "b"), 4, 2)
    assert require_usable([good], "a") == {"r": good}
    for bad in (
        [good, good],
        [RingSpec("r", ("b", "c"), 4, 2)],
        [RingSpec("r", ("a", "a"), 4, 2)],
        [RingSpec("r", ("a", "b"), 4, 0)],
        [RingSpec("r", ("a", "b"), 4, 2, torch.int64)],
        [RingSpec("r", ("a", "b"), 4, 2, torch.float64, "int8")],
        [RingSpec("r", ("a", "b"), 4, 2, shares=(0.5, 0.6))],
    ):
        with pytest.raises(InvalidInput):
            require_usable(bad, "a")
