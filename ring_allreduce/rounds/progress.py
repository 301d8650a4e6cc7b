"""The arithmetic of averaging progress with bounded staleness, on flat float32 vectors. Pure; it knows no peers.

In: live weights, and the averages that rounds return. Out: the progress to contribute, and the correction that a merge
adds to the live weights (design §7).

Round r takes p_r = w − base, then base ← w. The ring returns ḡ. A merge gives δ = outer(ḡ), A += δ and the correction
δ − p_r, which the caller adds to its live weights. `base` is not stored. It always equals the anchor plus the pending
progress, and deriving it keeps rounding errors from piling up between w and A: what one merge loses, the next snapshot
finds again.

    w = A + Σ pending p + (progress since the last snapshot)          at every moment
"""

from collections.abc import Callable

import torch
from torch import Tensor

from ring_allreduce.errors import InvalidInput

PIECE_ELEMENTS = 1 << 20
"""The numbers of a correction that `merge_in_pieces` makes at a time: 4 MiB."""


class Progress:
    """The anchor of one segment, and the progress that was contributed but not merged yet."""

    def __init__(self, weights: Tensor, outer: Callable[[Tensor], Tensor] | None = None, *, copy: bool = True) -> None:
        """`weights`: the flat start, float32, the same at every member. It is copied; with `copy` False it becomes the
        anchor itself, and nobody else may write to it.

        `outer` turns an average into the step that the anchor takes (outer_optimizer.py); without it the step is the
        average itself. It must not write to its argument.
        """
        if weights.dim() != 1 or weights.dtype != torch.float32:
            raise InvalidInput(f"progress needs a flat float32 vector, got {weights.dtype} {tuple(weights.shape)}")
        self._anchor = weights.detach().clone() if copy else weights.detach()
        self._pending: dict[int, Tensor] = {}
        self._outer = outer

    @property
    def anchor(self) -> Tensor:
        """Return the weights on which all members agree. Live: read it, or copy it, before the next merge."""
        return self._anchor

    @property
    def base(self) -> Tensor:
        """Return what the next snapshot is measured from: the anchor plus all pending progress. A new tensor."""
        base = self._anchor.clone()
        for progress in self._pending.values():
            base += progress
        return base

    @property
    def pending(self) -> tuple[int, ...]:
        """Rounds that were contributed to and not merged, oldest first: their number is the stage's lag."""
        return tuple(self._pending)

    def given(self, round: int) -> Tensor:  # noqa: A002 - our word
        """Return p_r of a pending round. Read it, never write to it."""
        return self._pending[round]

    def snapshot(self, round: int, weights: Tensor) -> Tensor:  # noqa: A002 - our word
        """p_r, what was made since the last snapshot. Kept until merge(): read it, never write to it.

        Raises InvalidInput when `round` is not after every pending round, or `weights` has another shape.
        """
        if self._pending and round <= max(self._pending):
            raise InvalidInput(f"round {round} does not follow the pending rounds {list(self._pending)}")
        self._check(weights)
        progress = weights.detach() - self._anchor
        for earlier in self._pending.values():
            progress -= earlier
        self._pending[round] = progress
        return progress

    def merge(self, round: int, average: Tensor, total_weight: float = 1.0) -> Tensor:  # noqa: A002 - our word
        """δ − p_r, a new tensor that the caller adds to its live weights; the anchor moves by δ.

        `total_weight`: what is behind the average. When it is 0 nobody trained: δ is the average (zeros), and
        the outer optimizer, which would go on by its momentum, is not asked. `average` is left as it is.
        Raises InvalidInput when `round` is not the oldest pending one.
        """
        correction = torch.empty_like(average)
        self.merge_in_pieces(
            round, average, lambda at, part: correction[at : at + part.numel()].copy_(part), total_weight
        )
        return correction

    def merge_in_pieces(
        self,
        round: int,  # noqa: A002 - our word
        average: Tensor,
        add: Callable[[int, Tensor], object],
        total_weight: float = 1.0,
    ) -> None:
        """As `merge`, with `add(at, part)` called for each piece of δ − p_r, where `at` is its first element.

        So no other vector of the segment's size is made, but for the δ of an outer optimizer.
        """
        if not self._pending or round != next(iter(self._pending)):
            raise InvalidInput(f"round {round} is not the oldest of the pending rounds {list(self._pending)}")
        self._check(average)
        step = average if self._outer is None or total_weight == 0 else self._outer(average)
        self._anchor += step
        progress = self._pending.pop(round)
        for at in range(0, len(step), PIECE_ELEMENTS):
            piece = slice(at, at + PIECE_ELEMENTS)
            add(at, step[piece] - progress[piece])

    def _check(self, vector: Tensor) -> None:
        if vector.shape != self._anchor.shape or vector.dtype != torch.float32:
            shape = tuple(self._anchor.shape)
            raise InvalidInput(f"expected float32 {shape}, got {vector.dtype} {tuple(vector.shape)}")
