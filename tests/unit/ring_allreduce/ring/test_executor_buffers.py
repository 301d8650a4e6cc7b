"""Memory that comes back is used again; what somebody may still read is not."""

import torch

from ring_allreduce.ring.executor import BufferPool


def test_what_comes_back_is_used_again_by_size_and_dtype():
    spare = BufferPool()
    first = spare.take(4, torch.float32)
    spare.give(first)
    assert spare.take(4, torch.float64).data_ptr() != first.data_ptr()
    assert spare.take(5, torch.float32).data_ptr() != first.data_ptr()
    assert spare.take(4, torch.float32).data_ptr() == first.data_ptr()


def test_what_was_not_lent_or_is_forgotten_or_comes_back_twice_is_not_used():
    spare = BufferPool()
    spare.give(torch.zeros(4))
    read_on = spare.take(4, torch.float32)
    spare.forget(read_on)
    spare.give(read_on)
    assert spare.take(4, torch.float32).data_ptr() != read_on.data_ptr()
    once = spare.take(4, torch.float32)
    spare.give(once)
    spare.give(once)
    assert spare.take(4, torch.float32).data_ptr() != spare.take(4, torch.float32).data_ptr()
    empty = spare.take(0, torch.float32)
    spare.give(empty)
    assert spare.take(0, torch.float32).numel() == 0


def test_vectors_are_made_where_they_are_told_to():
    made = []

    def empty(elements, dtype):
        made.append(torch.zeros(elements, dtype=dtype))
        return made[-1]

    spare = BufferPool(empty)
    first = spare.take(4, torch.float32)
    spare.give(first)
    assert spare.take(4, torch.float32) is first is made[0]
    assert len(made) == 1
