"""Forms that are shorter than those of a job, to be tried before one is built: what a receiver makes of numbers.

In: tensors of float32. Out: what arrives of them, and the bits that a number takes on the wire, scales and places
included. All but `low_rank` work on blocks of a tensor's numbers, whose scale travels as bfloat16. Nothing is packed.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

SCALE_BITS = 16
INT8_BITS = 8 + 32 / 256
_LEAST_SCALE = 1e-30
_NORMAL: dict[int, tuple[float, ...]] = {1: (0.7979,), 2: (0.4528, 1.5104), 3: (0.2451, 0.7560, 1.3439, 2.1519)}
"""The positive levels that lose least of numbers with a normal distribution and a variance of 1 (Max, 1960)."""

Passes = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Tried:
    """One form: the bits of a number, and what becomes of a tensor."""

    bits: float
    passes: Passes


EXACT = Tried(32.0, lambda tensor: tensor)


def whole_numbers(levels: int, block: int, generator: torch.Generator | None = None) -> Tried:
    """Whole numbers from −levels to levels, times the block's largest magnitude / levels: the nearest ones, or with a
    generator one of the two beside, so that their mean is right. Three levels: five numbers in a byte."""
    bits = 1.6 if levels == 1 else math.ceil(math.log2(2 * levels + 1))

    def passes(tensor: Tensor) -> Tensor:
        rows = _rows(tensor, block)
        scale = _sent(rows.abs().amax(-1, keepdim=True) / levels)
        parts = rows / scale
        if generator is None:
            parts = parts.round()
        else:
            parts = torch.floor(parts + torch.rand(parts.shape, generator=generator))
        return _back(parts.clamp_(-levels, levels) * scale, tensor)

    return Tried(bits + SCALE_BITS / block, passes)


def normal_levels(bits: int, block: int) -> Tried:
    """2^bits levels for numbers with a normal distribution, times the block's root mean square. One bit is the sign."""
    above = torch.tensor(_NORMAL[bits])
    levels = torch.cat([-above.flip(0), above])
    between = (levels[1:] + levels[:-1]) / 2

    def passes(tensor: Tensor) -> Tensor:
        rows = _rows(tensor, block)
        if bits == 1:  # the mean magnitude loses least, whatever the distribution
            scale = _sent(rows.abs().mean(-1, keepdim=True) / above[0])
        else:
            scale = _sent(rows.square().mean(-1, keepdim=True).sqrt())
        return _back(levels[torch.bucketize((rows / scale).contiguous(), between)] * scale, tensor)

    return Tried(bits + SCALE_BITS / block, passes)


def largest(kept: int, block: int) -> Tried:
    """The largest of each block as int4, and their places. The others are zeros."""

    def passes(tensor: Tensor) -> Tensor:
        rows = _rows(tensor, block)
        places = rows.abs().topk(kept, dim=-1).indices
        values = rows.gather(-1, places)
        scale = _sent(values.abs().amax(-1, keepdim=True) / 7)
        return _back(torch.zeros_like(rows).scatter_(-1, places, (values / scale).round_() * scale), tensor)

    return Tried((kept * (4 + math.log2(block)) + SCALE_BITS) / block, passes)


def low_rank(rank: int, rows: int, columns: int) -> Tried:
    """Two thin matrices as int8 whose product is near a matrix of `rows` rows, by one step of power iteration from the
    columns of the tensor before (PowerSGD)."""
    basis = torch.linalg.qr(torch.randn(columns, rank, generator=torch.Generator().manual_seed(0)))[0]
    int8 = whole_numbers(127, 256).passes

    def passes(tensor: Tensor) -> Tensor:
        nonlocal basis
        matrix = tensor.reshape(-1, columns)
        left = torch.linalg.qr(matrix @ basis)[0]
        right = matrix.T @ left
        basis = torch.linalg.qr(right)[0]
        return (int8(left) @ int8(right).T).view_as(tensor)

    return Tried(INT8_BITS * rank * (rows + columns) / (rows * columns), passes)


def fed_back(form: Tried) -> Tried:
    """What one tensor loses is added to the next, number by number: in a cut, to that of other samples."""
    lost: Tensor | None = None

    def passes(tensor: Tensor) -> Tensor:
        nonlocal lost
        whole = tensor if lost is None else tensor + lost
        sent = form.passes(whole)
        lost = whole - sent
        return sent

    return Tried(form.bits, passes)


def _sent(scale: Tensor) -> Tensor:
    return scale.to(torch.bfloat16).float().clamp_min(_LEAST_SCALE)


def _rows(tensor: Tensor, block: int) -> Tensor:
    """The numbers in rows of a block, the last of which is filled up with zeros."""
    flat = tensor.reshape(-1)
    return functional.pad(flat, (0, -flat.numel() % block)).view(-1, block)


def _back(rows: Tensor, like: Tensor) -> Tensor:
    return rows.reshape(-1)[: like.numel()].view(like.shape)
