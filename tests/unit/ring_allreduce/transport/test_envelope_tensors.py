"""Tensors as bytes: every dtype, odd shapes, no copy where that is safe, never a warning."""

import warnings

import pytest
import torch

from ring_allreduce.errors import InvalidInput
from ring_allreduce.transport.envelope import COPY_BELOW_BYTES, DTYPES, byte_count, tensor_bytes, tensor_from

SHAPES = [(), (0,), (1,), (3, 0, 2), (5,), (2, 3), (COPY_BELOW_BYTES,), (64, 300)]


@pytest.fixture(autouse=True)
def no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def sample(dtype, shape):
    generator = torch.Generator().manual_seed(1)
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(dtype)
    return torch.randint(0, 2 if dtype == torch.bool else 100, shape, generator=generator).to(dtype)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_round_trip(dtype, shape):
    tensor = sample(dtype, shape)
    body = tensor_bytes(tensor)
    assert body.nbytes == byte_count(dtype, shape)
    for received in (memoryview(bytes(body)), memoryview(bytearray(body))):
        back = tensor_from(received, dtype, shape)
        assert back.dtype == dtype
        assert back.shape == tensor.shape
        assert torch.equal(back, tensor)


def test_sends_the_memory_itself():
    tensor = torch.zeros(10)
    body = tensor_bytes(tensor[2:4])
    tensor[2] = 1.0
    assert torch.frombuffer(bytearray(body), dtype=torch.float32).tolist() == [1.0, 0.0]


def test_sends_views_in_row_major_order_and_what_needs_a_gradient():
    tensor = torch.arange(6.0).reshape(2, 3).requires_grad_()
    body = tensor_bytes(tensor.T)
    assert tensor_from(body, torch.float32, (3, 2)).tolist() == tensor.T.tolist()


def test_uses_large_aligned_memory_where_it_lies():
    memory = bytearray(COPY_BELOW_BYTES)
    tensor = tensor_from(memoryview(memory), torch.float32, (COPY_BELOW_BYTES // 4,))
    memory[0:4] = b"\x00\x00\x80\x3f"
    assert tensor[0] == 1.0


@pytest.mark.parametrize("offset", [1, 2, 3, 5])
def test_copies_unaligned_memory(offset):
    values = torch.randn(COPY_BELOW_BYTES)
    memory = memoryview(bytearray(offset) + bytearray(tensor_bytes(values)))
    tensor = tensor_from(memory[offset:], torch.float32, values.shape)
    assert torch.equal(tensor, values)
    assert tensor.data_ptr() % 4 == 0


def test_read_only_memory_is_copied_so_that_the_tensor_may_be_written():
    body = bytes(COPY_BELOW_BYTES)
    tensor_from(memoryview(body), torch.uint8, (COPY_BELOW_BYTES,)).fill_(1)
    assert body == bytes(COPY_BELOW_BYTES)


def test_any_byte_is_a_valid_bool():
    tensor = tensor_from(memoryview(bytes([0, 1, 2, 255])), torch.bool, (4,))
    assert tensor.view(torch.uint8).tolist() == [0, 1, 1, 1]


@pytest.mark.parametrize(
    "tensor",
    [torch.zeros(2, dtype=torch.complex64), torch.zeros(2, device="meta"), torch.eye(2).to_sparse()],
    ids=["complex", "meta", "sparse"],
)
def test_refuses_what_cannot_travel(tensor):
    with pytest.raises(InvalidInput):
        tensor_bytes(tensor)
