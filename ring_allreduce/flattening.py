"""Lists of tensors as one flat vector and back. Copies only where it must."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ring_allreduce.errors import InvalidInput


def flatten(tensors: Sequence[Tensor]) -> Tensor:
    """All numbers in a row: float32, or float64 when a tensor is. One tensor may come back as a view of itself.

    Raises InvalidInput for tensors that are not floating.
    """
    if any(not tensor.dtype.is_floating_point for tensor in tensors):
        raise InvalidInput(f"only floating tensors can be averaged; got {[str(t.dtype) for t in tensors]}")
    wide = any(tensor.dtype == torch.float64 for tensor in tensors)
    dtype = torch.float64 if wide else torch.float32
    parts = [tensor.detach().to("cpu", dtype).reshape(-1) for tensor in tensors]
    if len(parts) == 1:
        return parts[0].contiguous()
    return torch.cat(parts) if parts else torch.empty(0, dtype=dtype)


def unflatten(vector: Tensor, tensors: Sequence[Tensor]) -> None:
    """Write the numbers of `vector` into `tensors`, each in its own dtype, shape and place."""
    parts = torch.split(vector, [tensor.numel() for tensor in tensors])
    with torch.no_grad():
        for tensor, part in zip(tensors, parts, strict=True):
            tensor.copy_(part.view(tensor.shape))
