"""Shared memory: bytes arrive as they were put, a slot is free again when nobody holds it, and no liar gets through."""

import fcntl
import gc
import os

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ring_allreduce.errors import InvalidMessage
from ring_allreduce.transport.envelope import tensor_from
from ring_allreduce.transport.shared.memory import (
    LEAST_SLOT_BYTES,
    SEGMENT_BYTES,
    MappedSlots,
    SharedSlots,
    aligned,
    slot_bytes_for,
)


class Pair:
    """A sender and its reader, without what lies between them."""

    def __init__(self):
        self.sender, self.reader = SharedSlots(), MappedSlots(1 << 30)

    def put(self, *bodies):
        slot, slot_bytes, new = self.sender.put([memoryview(body) for body in bodies])
        if new is not None:
            self.reader.add_segment(new, slot_bytes)
            os.close(new)
        return slot

    def release(self):
        self.sender.release(self.reader.released)
        self.reader.released.clear()


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=5))
def test_bodies_arrive_as_they_were(bodies):
    pair = Pair()
    views = pair.reader.views(pair.put(*bodies), [len(body) for body in bodies])
    assert [bytes(view) for view in views] == bodies


@given(st.integers(1, 1 << 40))
def test_a_slot_holds_what_it_is_for_and_wastes_less_than_half(n_bytes):
    size = slot_bytes_for(n_bytes)
    assert size >= n_bytes
    assert size == LEAST_SLOT_BYTES or size < 2 * n_bytes
    assert aligned(n_bytes) - n_bytes in range(64)


def test_a_slot_is_released_when_the_last_tensor_of_it_is_gone():
    pair = Pair()
    slot = pair.put(bytes(20_000), bytes(30_000))
    first, second = pair.reader.views(slot, [20_000, 30_000])
    tensors = [tensor_from(body, torch.float32, [body.nbytes // 4]) for body in (first, second)]
    part = tensors[1][5:].reshape(-1)
    del first, second
    tensors.clear()
    gc.collect()
    assert not pair.reader.released
    part += 1.0
    del part
    gc.collect()
    assert list(pair.reader.released) == [slot]


def test_a_released_slot_is_used_next_and_no_other_memory():
    pair = Pair()
    body = bytes(1 << 20)
    for _ in range(100):
        slot = pair.put(body)
        assert pair.reader.views(slot, [len(body)])[0].nbytes == len(body)
        pair.release()
    assert slot == pair.put(body)
    assert pair.sender.total_bytes == SEGMENT_BYTES


def test_memory_grows_while_slots_are_held():
    pair = Pair()
    held = [pair.reader.views(pair.put(bytes([index]) * (1 << 20)), [1 << 20]) for index in range(40)]
    assert pair.sender.total_bytes == 3 * SEGMENT_BYTES
    assert all(view[0] == view[-1] == index for index, (view,) in enumerate(held))


def test_a_body_larger_than_a_segment_has_one_of_its_own():
    pair = Pair()
    body = bytes(SEGMENT_BYTES + 1)
    (view,) = pair.reader.views(pair.put(body), [len(body)])
    assert view.nbytes == len(body)
    assert pair.sender.total_bytes == 2 * SEGMENT_BYTES


def test_the_memory_of_a_sender_that_is_gone_can_still_be_read():
    pair = Pair()
    (view,) = pair.reader.views(pair.put(b"x" * 70_000), [70_000])
    del pair.sender
    gc.collect()
    assert bytes(view) == b"x" * 70_000


def test_what_is_not_there_is_refused():
    pair = Pair()
    slot = pair.put(bytes(100))
    with pytest.raises(InvalidMessage, match="no segment 1"):
        pair.reader.views(slot + SEGMENT_BYTES // LEAST_SLOT_BYTES, [100])
    with pytest.raises(InvalidMessage, match=r"65537 bytes in slot"):
        pair.reader.views(slot, [LEAST_SLOT_BYTES + 1])
    with pytest.raises(InvalidMessage, match=r"in slot"):
        pair.reader.views(slot, [1] * (LEAST_SLOT_BYTES // 64 + 1))
    held = pair.reader.views(slot, [100])
    with pytest.raises(InvalidMessage, match=r"in slot"):
        pair.reader.views(slot, [100])
    assert held
    big = pair.put(bytes(9 << 20))
    with pytest.raises(InvalidMessage, match=r"in slot 1"):
        pair.reader.views(big + 1, [100])


@pytest.mark.parametrize(("size", "slot_bytes", "seal"), [(1, 1 << 16, True), (1, 1 << 24, False), (2, 3 << 20, True)])
def test_a_segment_that_could_shrink_or_has_another_size_is_refused(size, slot_bytes, seal):
    """A page that vanishes under its reader would kill the process."""
    descriptor = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, size * SEGMENT_BYTES if slot_bytes > 1 << 16 else size)
    if seal:
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    with pytest.raises(InvalidMessage, match="no sender of ours"):
        MappedSlots(1 << 30).add_segment(descriptor, slot_bytes)
    os.close(descriptor)


def test_nobody_can_shrink_a_segment():
    _, _, descriptor = SharedSlots().put([memoryview(b"x")])
    with pytest.raises(PermissionError):
        os.ftruncate(descriptor, 0)
    os.close(descriptor)


def test_releasing_what_is_not_taken_changes_nothing():
    pair = Pair()
    slot = pair.put(b"x")
    pair.sender.release([slot, slot, 12345])
    assert pair.put(b"y") == slot
    assert pair.put(b"z") != slot


def test_of_large_slots_only_one_that_is_free_keeps_its_pages():
    pair = Pair()
    body = bytes([7]) * (9 << 20)
    slots = [pair.put(body) for _ in range(3)]
    pair.sender.release(slots)
    kept = [pair.reader.views(slot, [len(body)])[0][0] for slot in slots]
    assert kept == [7, 0, 0]
    again = [pair.put(body) for _ in range(3)]
    assert sorted(again) == sorted(slots)


def test_a_slot_beyond_the_largest_message_is_refused():
    _, slot_bytes, descriptor = SharedSlots().put([memoryview(bytes(17 << 20))])
    with pytest.raises(InvalidMessage, match="no sender of ours"):
        MappedSlots(16 << 20).add_segment(descriptor, slot_bytes)
    os.close(descriptor)


@pytest.mark.parametrize("seals", [fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_WRITE, None])
def test_what_cannot_be_mapped_is_refused(tmp_path, seals):
    if seals is None:
        descriptor = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    else:
        descriptor = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, SEGMENT_BYTES)
    if seals is not None:
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    with pytest.raises(InvalidMessage, match="no sender of ours"):
        MappedSlots(1 << 30).add_segment(descriptor, LEAST_SLOT_BYTES)
    os.close(descriptor)
