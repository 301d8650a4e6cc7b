"""Gradients of low rank: two thin matrices travel instead of each large one (PowerSGD). Pure.

In: a vector that holds parameters' gradients one after another, and a rank r. Out: a shorter vector, and from it again
one of the first length. Of a gradient M (n × m; a tensor of more dimensions counts as its first one times the others):

    P = orthonormal columns of M B  (n × r),   Q = Mᵀ P  (m × r),   M ≈ P Qᵀ

B is the last Q, so that each time is one more step of the power iteration towards the r largest singular vectors
(Vogels, Karimireddy and Jaggi, NeurIPS 2019). P Qᵀ = P Pᵀ M is a projection of M: what is lost has no part in it, and
comes the sooner when it is fed back (packing.py). Parameters that two thin matrices would not make shorter travel as
they are. Each sender has a B of its own: there is one round trip instead of the paper's two all-reduces, a volunteer
needs nothing of others', and a sum of several such gradients is of higher rank than each.

P Qᵀ is added up element by element, in one order, and by no routine for matrices: these round otherwise on other
processors, and all who take a mean have to hold the same bytes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ravnest.errors import InvalidInput


@dataclass(frozen=True)
class _Matrix:
    """Where one parameter's gradient stands, in both vectors. rank 0: it travels as it is."""

    at: int
    rows: int
    columns: int
    packed_at: int
    rank: int

    @property
    def elements(self) -> int:
        return self.rows * self.columns

    @property
    def packed(self) -> int:
        return self.rank * (self.rows + self.columns) or self.elements


class LowRank:
    """How gradients of these shapes are divided. It has no state."""

    def __init__(self, shapes: Sequence[Sequence[int]], rank: int) -> None:
        self._matrices: list[_Matrix] = []
        at = packed_at = 0
        for shape in shapes:
            rows = shape[0] if len(shape) > 1 else 1
            columns = int(torch.Size(shape).numel()) // max(1, rows)
            used = min(rank, rows, columns)
            thin = len(shape) > 1 and used * (rows + columns) < rows * columns
            self._matrices.append(_Matrix(at, rows, columns, packed_at, used if thin else 0))
            at += self._matrices[-1].elements
            packed_at += self._matrices[-1].packed
        self.elements, self.packed_elements = at, packed_at
        """Of the vector, and of what travels."""

    def first_bases(self) -> list[Tensor]:
        """The B of a sender that has sent nothing yet, one for each matrix that travels as two."""
        thin = [one for one in self._matrices if one.rank]
        return [_spread(one.columns * one.rank).view(one.columns, one.rank) for one in thin]

    def packed(self, vector: Tensor, bases: list[Tensor]) -> Tensor:
        """Return what travels of `vector`, and leave the next B in `bases`."""
        found = torch.empty(self.packed_elements)
        number = 0
        for one in self._matrices:
            part = vector[one.at : one.at + one.elements]
            into = found[one.packed_at : one.packed_at + one.packed]
            if not one.rank:
                into.copy_(part)
                continue
            matrix = part.view(one.rows, one.columns)
            left, _ = torch.linalg.qr(matrix @ torch.linalg.qr(bases[number])[0])
            right = matrix.T @ left
            bases[number] = right
            number += 1
            into[: left.numel()].copy_(left.reshape(-1))
            into[left.numel() :].copy_(right.reshape(-1))
        return found

    def unpacked(self, packed: Tensor, most: float) -> Tensor:
        """Return the vector that `packed` stands for. Raises InvalidInput for numbers that are not within ± `most`."""
        found = torch.empty(self.elements)
        for one in self._matrices:
            part = packed[one.packed_at : one.packed_at + one.packed]
            if one.rank:
                left = part[: one.rows * one.rank].view(one.rows, one.rank)
                right = part[one.rows * one.rank :].view(one.columns, one.rank)
                _product(left, right, found[one.at : one.at + one.elements].view(one.rows, one.columns))
            else:
                found[one.at : one.at + one.elements] = part
        if found.numel() and not bool((found.abs() <= most).all()):
            raise InvalidInput(f"the product of its thin matrices holds NaN, or numbers beyond {most:g}")
        return found


def _product(left: Tensor, right: Tensor, into: Tensor) -> None:
    """Write left times the transpose of right. Each multiplication and each addition is rounded by itself."""
    torch.mul(left[:, :1], right[:, 0], out=into)
    term = torch.empty_like(into)
    for column in range(1, left.shape[1]):
        torch.mul(left[:, column : column + 1], right[:, column], out=term)
        into.add_(term)


def _spread(count: int) -> Tensor:
    """Numbers from −1/2 to 1/2 that look like chance, and are the same everywhere."""
    places = torch.arange(1, count + 1, dtype=torch.float64)
    return ((places * places * 0.7548776662466927) % 1.0 - 0.5).to(torch.float32)
