"""The gradients of a backward, of which no two large ones are in memory at a time.

In: modules, and a backward that the caller runs. Out: each parameter's gradient by name: a small one itself, and of a
large one what it is compared by, which is noted as soon as autograd has summed it, and then it is dropped.

A gradient g is compared by s_k = Σ ±g_i over pieces of PIECE numbers, with fixed signs, and by its largest magnitude.
For two gradients that differ by δ everywhere, s differs by about δ·√PIECE, and by δ where one number alone does.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial

import torch
from torch import Tensor, nn

LARGE = 1 << 22
"""The numbers from which on a gradient is not kept."""
PIECE = 64


@dataclass(frozen=True)
class Noted:
    """What is kept of a large gradient. Parts of one gradient can be added."""

    shape: torch.Size
    dtype: torch.dtype
    sums: Tensor
    largest: float

    def __add__(self, other: "Noted") -> "Noted":
        return Noted(self.shape, self.dtype, self.sums + other.sums, max(self.largest, other.largest))

    def difference(self, right: "Noted") -> float:
        """From `right`, relative to its largest magnitude; of numbers that are not finite the places must agree."""
        mine, other = self.sums, right.sums
        same = (mine == other) | (mine.isnan() & other.isnan())
        apart = float(torch.where(same, torch.zeros_like(mine), mine - other).abs().max()) if len(mine) else 0.0
        ratio = apart / PIECE**0.5 / max(right.largest, 1e-30)
        return ratio if ratio == ratio else float("inf")


def noted(gradient: Tensor) -> Noted:
    """What is kept of a gradient."""
    flat = gradient.detach().reshape(-1)
    whole = flat.numel() // PIECE * PIECE
    kind = torch.complex128 if flat.is_complex() else torch.float32
    sums = [piece.view(-1, PIECE).to(kind) @ _signs().to(kind) for piece in torch.split(flat[:whole], LARGE)]
    rest = flat[whole:].to(kind)
    largest = max((_largest(piece) for piece in torch.split(flat, LARGE) if piece.numel()), default=0.0)
    return Noted(gradient.shape, gradient.dtype, torch.cat([*sums, rest]), largest)


def _largest(piece: Tensor) -> float:
    """The largest magnitude among its finite numbers."""
    if not piece.is_complex():
        least, most = (float(end) for end in piece.aminmax())
        if math.isfinite(least) and math.isfinite(most):
            return max(-least, most)
    return float(piece.abs().nan_to_num(0.0, 0.0, 0.0).max())


@cache
def _signs() -> Tensor:
    return torch.randint(0, 2, (PIECE,), generator=torch.Generator().manual_seed(0)) * 2.0 - 1.0


@contextmanager
def noting_gradients(modules: Sequence[nn.Module], large: int = LARGE) -> Iterator[dict[str, Tensor | Noted]]:
    """The gradients that a backward inside the block gives to parameters of the modules, by name.

    Where several modules have a parameter of the same name, their gradients are added. The parameters keep none.
    """
    found: dict[str, Tensor | Noted] = {}

    def note(name: str, parameter: Tensor) -> None:
        gradient, parameter.grad = parameter.grad, None
        assert gradient is not None
        given = noted(gradient) if gradient.numel() >= large else gradient
        found[name] = found[name] + given if name in found else given  # type: ignore[operator]

    handles = [
        parameter.register_post_accumulate_grad_hook(partial(note, name))  # type: ignore[no-untyped-call]
        for module in modules
        for name, parameter in module.named_parameters()
        if parameter.requires_grad
    ]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()
