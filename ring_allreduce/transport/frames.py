"""Tensors as raw bytes and back, without a copy where that is safe.

Decides which dtypes travel and when a received body may be used where it lies. Knows no message and no
socket.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ring_allreduce.errors import InvalidInput

DTYPES: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
    "int64": torch.int64,
    "int32": torch.int32,
    "int16": torch.int16,
    "int8": torch.int8,
    "uint8": torch.uint8,
    "bool": torch.bool,
}
"""The dtypes that travel, by the names they have on the wire."""

DTYPE_NAMES: dict[torch.dtype, str] = {dtype: name for name, dtype in DTYPES.items()}

_NUMPY_HAS = {torch.float32, torch.float64, torch.float16, torch.int64, torch.int8}

COPY_BELOW_BYTES = 16 * 1024
"""Smaller bodies are copied on arrival: they may lie unaligned in a receive buffer that they would pin."""


def tensor_bytes(tensor: Tensor) -> memoryview:
    """The bytes of `tensor` in row-major order, as a view of its memory when it is contiguous.

    Raises InvalidInput when its dtype or device cannot travel.
    """
    if tensor.dtype not in DTYPE_NAMES or tensor.device.type != "cpu" or tensor.layout != torch.strided:
        raise InvalidInput(
            f"a dense CPU tensor of one of {', '.join(DTYPES)} can travel; "
            f"got {tensor.dtype} on {tensor.device} ({tensor.layout})"
        )
    flat = tensor.detach().contiguous()
    if flat.dim() == 1 and flat.dtype in _NUMPY_HAS:  # a view less, for what travels most
        return flat.numpy().data
    return flat.reshape(-1).view(torch.uint8).numpy().data


def byte_count(dtype: torch.dtype, shape: Sequence[int]) -> int:
    """Bytes of a dense tensor; exact for any shape, since Python integers do not overflow."""
    return dtype.itemsize * math.prod(shape)


def tensor_from(body: memoryview, dtype: torch.dtype, shape: Sequence[int]) -> Tensor:
    """A tensor over `body`, whose length the caller has checked; it keeps `body` alive as long as it lives.

    Small, unaligned or read-only bodies are copied. torch warns about read-only memory, and rightly: a tensor
    that nobody may write to is a trap, so such a body is copied instead of the warning being silenced.
    """
    if not body.nbytes:
        return torch.empty(tuple(shape), dtype=dtype)
    copied = body.nbytes < COPY_BELOW_BYTES or body.readonly
    if dtype == torch.bool:
        # Any byte may have arrived, and torch does not define a bool that is neither 0 nor 1.
        return torch.frombuffer(bytearray(body), dtype=torch.uint8).ne(0).reshape(tuple(shape))
    tensor = torch.frombuffer(bytearray(body) if copied else body, dtype=dtype)
    if not copied and tensor.data_ptr() % dtype.itemsize:
        tensor = torch.frombuffer(bytearray(body), dtype=dtype)
    return tensor if len(shape) == 1 else tensor.reshape(tuple(shape))
