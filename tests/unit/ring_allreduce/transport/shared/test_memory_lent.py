"""Lent memory: found where it lies and nowhere else, let go of when nobody holds it, and numbered without repeats."""

import fcntl
import os
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ring_allreduce.errors import InvalidMessage
from ring_allreduce.transport.shared import memory as lent_memory
from ring_allreduce.transport.shared.memory import (
    LEAST_LENT_BYTES,
    MOST_LENT,
    BorrowedMemory,
    LentMemory,
    LentNumbers,
    LentSegment,
)


def bytes_of(tensor):
    return memoryview(tensor.numpy()).cast("B")


def test_a_body_is_found_in_the_segment_in_which_it_lies():
    lent = LentMemory(available=True)
    vectors = [lent.empty(LEAST_LENT_BYTES, torch.float32) for _ in range(5)]
    for vector in vectors:
        segment, offset = lent.find(bytes_of(vector[100:200]))
        assert (segment.start, segment.n_bytes, offset) == (vector.data_ptr(), 4 * LEAST_LENT_BYTES, 400)
    for elsewhere in (bytes_of(torch.zeros(LEAST_LENT_BYTES)), memoryview(b"read only"), memoryview(bytearray(9))):
        assert lent.find(elsewhere) is None


@pytest.mark.parametrize(("available", "elements"), [(False, LEAST_LENT_BYTES), (True, 100), (True, 0)])
def test_what_is_small_or_has_no_reader_is_ordinary_memory(available, elements):
    lent = LentMemory(available=available)
    vector = lent.empty(elements, torch.float32)
    assert vector.shape == (elements,)
    assert vector.dtype == torch.float32
    assert lent.find(bytes_of(vector)) is None


def test_memory_that_nobody_holds_is_let_go_of_and_its_descriptor_closed():
    lent = LentMemory(available=True)
    vector = lent.empty(LEAST_LENT_BYTES, torch.float32)
    part = vector[10:20]
    segment, _ = lent.find(bytes_of(vector))
    del vector
    assert lent.find(bytes_of(part)) == (segment, 40)
    del part
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(segment.descriptor)
    assert not segment.gone
    lent.reap()
    assert segment.gone


def test_what_outlives_its_endpoint_leaves_nothing_behind():
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(5):
        lent = LentMemory(available=True)
        vector = lent.empty(LEAST_LENT_BYTES, torch.float32)
        del lent
        assert vector.fill_(1.0).sum() == LEAST_LENT_BYTES
        del vector
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_without_a_descriptor_left_the_vector_is_ordinary(monkeypatch):
    def none_left(*_):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "memfd_create", none_left)
    lent = LentMemory(available=True)
    vector = lent.empty(LEAST_LENT_BYTES, torch.float32)
    assert vector.numel() == LEAST_LENT_BYTES
    assert lent.find(bytes_of(vector)) is None


@given(st.lists(st.booleans(), max_size=60))
def test_numbers_are_given_once_and_again_only_when_forgotten(steps):
    numbers, live = LentNumbers(), []
    for add in steps:
        if add:
            segment, number = LentSegment(0, 1, -1), numbers.free()
            assert number not in {numbers.known(other) for other in live}
            numbers.give(segment, number)
            live.append(segment)
        elif live:
            live[0].gone = True
            assert list(numbers.gone().items()) == [(live[0], numbers.known(live[0]))]
            numbers.forget([live.pop(0)])
    assert [numbers.known(segment) is not None for segment in live] == [True] * len(live)


def test_beyond_the_most_there_is_no_number():
    numbers = LentNumbers()
    for number in range(MOST_LENT):
        numbers.give(LentSegment(number, 1, -1), number)
    assert numbers.free() is None


def test_the_reader_sees_the_senders_numbers_within_their_bounds_only():
    lent, borrowed = LentMemory(available=True), BorrowedMemory()
    vector = lent.empty(LEAST_LENT_BYTES, torch.uint8).fill_(7)
    segment, _ = lent.find(bytes_of(vector))
    borrowed.add(3, segment.descriptor)
    assert bytes(borrowed.view(3, 10, 5)) == bytes([7] * 5)
    for number, offset, n_bytes in ((2, 0, 1), (3, 0, LEAST_LENT_BYTES + 1), (3, LEAST_LENT_BYTES, 1), (3, 1 << 62, 4)):
        with pytest.raises(InvalidMessage):
            borrowed.view(number, offset, n_bytes)
    view = borrowed.view(3, 0, 4)
    borrowed.view(3, LEAST_LENT_BYTES - 4, 4)[:] = bytes(4)
    assert vector.tolist() == [7] * LEAST_LENT_BYTES, "a reader that writes spoils its own copy only"
    borrowed.forget(3)
    borrowed.forget(3)
    assert bytes(view) == bytes([7] * 4)
    with pytest.raises(InvalidMessage):
        borrowed.view(3, 0, 1)


def test_a_peer_cannot_fill_the_address_space(monkeypatch):
    monkeypatch.setattr(lent_memory, "MOST_BORROWED_BYTES", 1 << 20)
    borrowed = BorrowedMemory()
    descriptor = os.memfd_create("huge", os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, 1 << 19)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    borrowed.add(0, descriptor)
    borrowed.add(1, descriptor)
    with pytest.raises(InvalidMessage):
        borrowed.add(2, descriptor)
    os.close(descriptor)
