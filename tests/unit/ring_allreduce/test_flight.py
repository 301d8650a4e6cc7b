"""The arithmetic of ring instructions, in place in one accumulating vector."""

import math

import pytest
import torch

from ring_allreduce.flight import Flight, RingSpec, is_finite
from ring_allreduce.ring import Ring
from ring_allreduce.ring_events import AddChunk, AddOwn, DivideChunk, ScaleOwn, StoreChunk, StoreOwn


@pytest.fixture
def flight():
    spec = RingSpec("r", ("a", "b"), 4, 2)
    return Flight(spec, Ring(spec.members, "a", 4, 2, 1, 0), torch.tensor([1.0, 2.0, 3.0, 4.0]), 10.0)


def test_instructions_write_only_their_span(flight):
    flight.room().fill_(7.0)
    flight.compute(ScaleOwn(0, 2), None)
    flight.compute(AddChunk(2, 3), torch.tensor([5.0]))
    assert flight.room().tolist() == [10.0, 20.0, 35.0, 7.0]
    flight.compute(StoreChunk(3, 4), torch.tensor([-1.0]))
    flight.compute(AddOwn(3, 4), None)
    flight.compute(DivideChunk(0, 2, 4.0), None)
    assert flight.room().tolist() == [2.5, 5.0, 35.0, 39.0]
    assert flight.own.tolist() == [1.0, 2.0, 3.0, 4.0]


def test_a_total_of_zero_gives_zeros(flight):
    flight.room().fill_(7.0)
    flight.compute(DivideChunk(0, 4, 0.0), None)
    assert flight.room().tolist() == [0.0] * 4


def test_a_lone_members_average_is_its_own_vector(flight):
    flight.compute(StoreOwn(), None)
    assert flight.room() is flight.own


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_is_finite(dtype):
    largest = torch.finfo(dtype).max
    assert is_finite(torch.zeros(0, dtype=dtype))
    assert is_finite(torch.full((8,), largest, dtype=dtype)), "an overflowing sum of finite numbers"
    assert not is_finite(torch.tensor([0.0, math.nan], dtype=dtype))
    assert not is_finite(torch.tensor([math.inf, -math.inf], dtype=dtype))
