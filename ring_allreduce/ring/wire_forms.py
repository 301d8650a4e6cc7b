"""One chunk as it travels: exact or in one of five shorter forms, and what the receiver makes of it. Pure.

In: a vector of numbers and the weight behind it. Out: the tensors that carry it, and the residual that is left for
error feedback; or the vector again, unless it is refused. This module knows no ring, member or round: the executor
keeps the residual, and the next round adds it.

    exact      the numbers themselves, of any floating dtype
    bfloat16   2 bytes a number, float32's range, 8 bits of it; float32 vectors only, as below
    float16    2 bytes a number, 11 bits; the mean is sent, so that a sum over many samples does not overflow 65504
    int8       round(x / scale), scale = max|x| / 127 of each BLOCK numbers, the scales beside them in float32
    int4       round(x / scale), scale = max|x| / 7 of each 64 numbers, the scales beside them in bfloat16; a byte has
               two numbers, the first in its low half, each plus 8
    sparse     of each BLOCK numbers the KEPT that are largest, as int4 with one scale, and their places in a byte each;
               the others are zeros, so that only who feeds back what is lost may use it
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from ring_allreduce.errors import InvalidInput
from ring_allreduce.ring.events import LEAST_WEIGHT

Wire = Literal["exact", "bfloat16", "float16", "int8", "int4", "sparse"]

WIRES: tuple[Wire, ...] = get_args(Wire)

BLOCK = 256
"""Numbers that share one scale in int8; the last block of a chunk may be shorter, in int4 too."""

KEPT = 12
"""Numbers of each BLOCK that travel in sparse: 20 bytes for 1,024 with their places and the scale."""

NOT_FINITE = "it holds NaN or infinite numbers"

_ROUNDED = 1.0 + 2.0**-6
"""Compression may make a number larger by this factor at most."""

_LEAST_SCALE = torch.finfo(torch.float32).tiny
"""Where |x| / scale could overflow the block is sent as zeros, less than 2e-36 away, and the residual has the rest."""


@dataclass(frozen=True)
class _Blockwise:
    """A form of whole numbers from -levels to levels, of which `block` share one scale of dtype `scales`."""

    levels: int
    block: int
    scales: torch.dtype
    in_a_byte: int

    @property
    def bytes_per_element(self) -> float:
        return 1.0 / self.in_a_byte + self.scales.itemsize / self.block

    @property
    def values(self) -> torch.dtype:
        """The dtype of what carries the whole numbers."""
        return torch.int8 if self.in_a_byte == 1 else torch.uint8

    @property
    def most_scale(self) -> float:
        """The largest scale: no number that it makes is infinite, not even the one below -levels."""
        return torch.finfo(torch.float32).max / (self.levels + 1)

    def rows(self, elements: int) -> int:
        """How many scales so many numbers have."""
        return -(-elements // self.block)

    def blocks(self, vector: Tensor) -> Iterator[Tensor]:
        """Yields `vector` in rows of `block` numbers, then what is left as one shorter row. Views."""
        whole = vector.numel() // self.block * self.block
        if whole:
            yield vector[:whole].view(-1, self.block)
        if whole < vector.numel():
            yield vector[whole:].view(1, -1)

    def columns(self, scales: Tensor, elements: int) -> Iterator[Tensor]:
        """Yields the scales of each of `blocks`, as columns. Views."""
        rows = elements // self.block
        if rows:
            yield scales[:rows, None]
        if rows < scales.numel():
            yield scales[rows:, None]


_BLOCKWISE: Mapping[Wire, _Blockwise] = {
    "int8": _Blockwise(127, BLOCK, torch.float32, 1),
    "int4": _Blockwise(7, 64, torch.bfloat16, 2),
}
_SPARSE = _Blockwise(7, KEPT, torch.bfloat16, 2)
_SHIFT = 8
"""What is added to a whole number of int4, so that it fits into half of a byte."""

_MEAN_WEIGHTS = (1e-30, 1e30)
"""float16: a sum behind another weight (none at all, for instance) is sent as it is."""


def check_wire(wire: Wire, dtype: torch.dtype) -> None:
    """Raises InvalidInput unless a vector of `dtype` can travel as `wire`."""
    if wire not in WIRES:
        raise InvalidInput(f"a wire is one of {', '.join(WIRES)}, not {wire!r}")
    if not dtype.is_floating_point:
        raise InvalidInput(f"only floating vectors can be averaged, not {dtype}")
    if wire != "exact" and dtype != torch.float32:
        raise InvalidInput(f"wire {wire!r} carries float32 vectors only: send {dtype} as exact")


def bytes_per_element(wire: Wire, dtype: torch.dtype = torch.float32) -> float:
    """Return the bytes that one number of a vector of `dtype` takes on the wire, scales included, headers not."""
    check_wire(wire, dtype)
    if wire == "sparse":
        return KEPT * (1.0 + _SPARSE.bytes_per_element) / BLOCK
    if wire in _BLOCKWISE:
        return _BLOCKWISE[wire].bytes_per_element
    return float(dtype.itemsize) if wire == "exact" else 2.0


def encode(wire: Wire, partial: Tensor, weight: float, residual: Tensor | None) -> list[Tensor]:
    """Return the tensors that carry `partial` (elements,), a sum Σ n p with the weight Σ n = `weight` behind it.

    `residual`, of the same shape, grows by partial − decode(…), bit by bit what the receiver will make of it; None:
    nobody keeps it. exact: `partial` itself, without a copy, and no residual. Numbers beyond the range of a float16
    become infinite, which the receiver refuses, as it does NaN. Raises InvalidInput as check_wire does.
    """
    if wire == "exact":
        return [partial]
    check_wire(wire, partial.dtype)
    if wire == "sparse":
        return _encode_sparse(partial, residual)
    if wire in _BLOCKWISE:
        return _encode_blocks(_BLOCKWISE[wire], partial, residual)
    factor = _mean_weight(weight) if wire == "float16" else 1.0
    values = (partial if factor == 1.0 else partial / factor).to(_cast(wire))
    if residual is not None:
        error = values.to(torch.float32)
        if factor != 1.0:
            error *= factor
        residual += torch.sub(partial, error, out=error)
    return [values]


def decode(
    wire: Wire,
    tensors: Sequence[Tensor],
    elements: int,
    weight: float,
    dtype: torch.dtype,
    most: float = math.inf,
) -> Tensor:
    """Return the vector (elements,) of `dtype` that `tensors` carry, a sum with `weight` behind it. exact: the tensor
    itself.

    Raises InvalidInput that names what is wrong: how many tensors, a dtype, a shape, NaN or infinite numbers, or some
    beyond `most`.
    """
    check_wire(wire, dtype)
    if wire == "sparse":
        vector = _decode_sparse(tensors, elements)
        _require_within(vector, most)
        return vector
    if wire in _BLOCKWISE:
        vector = _decode_blocks(_BLOCKWISE[wire], tensors, elements)
        _require_within(vector, most)
        return vector
    sent = dtype if wire == "exact" else _cast(wire)
    _check_form(tensors, [("values", sent, elements)])
    (values,) = tensors
    vector = values.to(dtype)
    factor = _mean_weight(weight) if wire == "float16" else 1.0
    if factor != 1.0:
        vector *= factor
    if not is_finite(vector):
        raise InvalidInput(NOT_FINITE + (", or some beyond float16" if sent != dtype else ""))
    _require_within(vector, most)
    return vector


def most_of_part(dtype: torch.dtype, members: int) -> float:
    """Return the largest magnitude that one weighted part of a sum over `members` may have.

    All parts together stay a factor of two within the range of `dtype`. The other half is for what compression adds,
    and for partial sums that lie: see most_arriving.
    """
    return float(torch.finfo(dtype).max) / (2 * members)


def most_arriving(dtype: torch.dtype, members: int, weight: float, *, whole: bool) -> float:
    """Return the largest magnitude that numbers from one of `members` members, with `weight` behind them, may have.

    They are a sum of parts (`whole`), or one part.
    Whoever adds a part to it, or divides it by the weight, stays within the range of `dtype`; so who is to blame for
    a number that does not is who sent this sum. A sum without weight, which is what compression left to members
    without weight, may be divided by the least weight that there is.
    """
    most = most_of_part(dtype, 1 if whole else members)
    return most * _ROUNDED * min(1.0, max(weight, LEAST_WEIGHT))


def is_finite(vector: Tensor) -> bool:
    """Say whether `vector` holds neither NaN nor infinities."""
    # The sum of finite numbers is finite unless it overflows: one cheap pass decides nearly always.
    return math.isfinite(vector.sum().item()) or bool(torch.isfinite(vector).all())


def why_not_summed(vector: Tensor, weight: float, members: int) -> str | None:
    """Return why `weight` · `vector` (elements,) cannot be one of `members` parts of a sum, or None when it can.

    It must be finite, and so far from the end of its dtype's range that `members` such parts do not go beyond it: who
    gave too much is refused then, not who happens to add it to the others'.
    """
    most = most_of_part(vector.dtype, members) / max(1.0, weight)
    largest = _beyond(vector, most)
    if largest is None:
        return None
    if not is_finite(vector):
        return NOT_FINITE
    return f"{members} parts with weight {weight:g} and its numbers, up to {largest:.3g}, overflow {vector.dtype}"


def _require_within(vector: Tensor, most: float) -> None:
    largest = None if most == math.inf else _beyond(vector, most)
    if largest is not None:
        raise InvalidInput(f"its numbers, up to {largest:.3g}, are beyond {most:.3g}, which no such sum is")


def _beyond(vector: Tensor, most: float) -> float | None:
    """Return the largest magnitude in `vector` where it is more than `most`, or NaN; None where it is not."""
    # No number is larger than the norm, whose square overflows long before a sum does: one pass decides nearly always.
    if vector.dot(vector).item() <= min(most, torch.finfo(torch.float32).max / 2) ** 2:
        return None
    largest = max(abs(limit.item()) for limit in torch.aminmax(vector))
    return None if largest <= most else float(largest)


def _cast(wire: Wire) -> torch.dtype:
    return torch.bfloat16 if wire == "bfloat16" else torch.float16


def _mean_weight(weight: float) -> float:
    least, most = _MEAN_WEIGHTS
    return weight if least <= weight <= most else 1.0


def _encode_blocks(form: _Blockwise, partial: Tensor, residual: Tensor | None) -> list[Tensor]:
    elements = partial.numel()
    scales = torch.empty(form.rows(elements), dtype=torch.float32)
    columns = list(form.columns(scales, elements))
    for block, scale in zip(form.blocks(partial), columns, strict=True):
        # Two passes without a temporary are faster than one over |x|.
        largest = torch.maximum(block.amax(1, keepdim=True), -block.amin(1, keepdim=True))
        torch.div(largest, form.levels, out=scale)
    scales[scales < _LEAST_SCALE] = 0.0
    sent = scales.to(form.scales)
    scales.copy_(sent)  # what the receiver will multiply by
    rounded = torch.empty_like(partial)  # the only temporary of the chunk's size
    for block, scale, rows in zip(form.blocks(partial), columns, form.blocks(rounded), strict=True):
        per_scale = scale.reciprocal()
        per_scale[scale == 0.0] = 0.0
        torch.mul(block, per_scale, out=rows).round_()
    values = rounded.to(torch.int8) if form.in_a_byte == 1 else _packed_halves(rounded)
    if residual is not None:
        for scale, rows in zip(columns, form.blocks(rounded), strict=True):
            rows *= scale
        residual += torch.sub(partial, rounded, out=rounded)
    return [values, sent]


def _decode_blocks(form: _Blockwise, tensors: Sequence[Tensor], elements: int) -> Tensor:
    length = -(-elements // form.in_a_byte)
    _check_form(tensors, [("values", form.values, length), ("scales", form.scales, form.rows(elements))])
    values, scales = tensors[0], tensors[1].to(torch.float32)
    vector = values.to(torch.float32) if form.in_a_byte == 1 else _unpacked_halves(values, elements)
    if elements:
        least, most = (limit.item() for limit in torch.aminmax(scales))
        if not (least >= 0.0 and most <= form.most_scale):  # NaN fails either
            raise InvalidInput(f"its scales must be finite and at least 0, not {least:g} to {most:g}")
        for scale, rows in zip(form.columns(scales, elements), form.blocks(vector), strict=True):
            rows *= scale
    return vector


def _encode_sparse(partial: Tensor, residual: Tensor | None) -> list[Tensor]:
    rows = torch.zeros(-(-partial.numel() // BLOCK), BLOCK)
    rows.view(-1)[: partial.numel()] = partial
    magnitudes = rows.abs().nan_to_num_(nan=math.inf)  # what is no number travels too, so that it is refused
    places = magnitudes.topk(KEPT, dim=1, sorted=False).indices.sort(dim=1).values
    sent = _encode_blocks(_SPARSE, rows.gather(1, places).view(-1), None)
    tensors = [places.to(torch.uint8).view(-1), *sent]
    if residual is not None:
        rows.view(-1)[: partial.numel()] -= _sparse_rows(tensors).view(-1)[: partial.numel()]
        residual += rows.view(-1)[: partial.numel()]
    return tensors


def _decode_sparse(tensors: Sequence[Tensor], elements: int) -> Tensor:
    rows = -(-elements // BLOCK)
    kept = rows * KEPT
    _check_form(
        tensors,
        [("places", torch.uint8, kept), ("values", _SPARSE.values, kept // 2), ("scales", _SPARSE.scales, rows)],
    )
    places = tensors[0].view(rows, KEPT)
    if not bool((places[:, 1:] > places[:, :-1]).all()):
        raise InvalidInput("the places of a block must rise")
    return _sparse_rows(tensors).view(-1)[:elements]


def _sparse_rows(tensors: Sequence[Tensor]) -> Tensor:
    """The blocks (rows, BLOCK) that these tensors carry. Raises InvalidInput for scales that nobody computes."""
    places, *sent = tensors
    rows = places.numel() // KEPT
    values = _decode_blocks(_SPARSE, sent, places.numel()).view(rows, KEPT)
    return torch.zeros(rows, BLOCK).scatter_(1, places.view(rows, KEPT).to(torch.int64), values)


def _packed_halves(rounded: Tensor) -> Tensor:
    """Two of these whole numbers in each byte; the last byte has one where they are odd in number."""
    halves = (rounded + _SHIFT).to(torch.uint8)
    packed = halves[::2].clone()
    packed[: halves.numel() // 2] |= halves[1::2] << 4
    return packed


def _unpacked_halves(packed: Tensor, elements: int) -> Tensor:
    vector = torch.empty(2 * packed.numel(), dtype=torch.float32)
    vector[::2] = packed & 0xF
    vector[1::2] = packed >> 4
    return vector[:elements].sub_(_SHIFT)


def _check_form(tensors: Sequence[Tensor], expected: Sequence[tuple[str, torch.dtype, int]]) -> None:
    if len(tensors) != len(expected):
        raise InvalidInput(f"{len(tensors)} tensors in a chunk, not {len(expected)}")
    for tensor, (what, dtype, elements) in zip(tensors, expected, strict=True):
        if tensor.dtype != dtype or tensor.shape != (elements,):
            raise InvalidInput(f"{what} {tensor.dtype} {tuple(tensor.shape)} for {dtype} ({elements},)")
