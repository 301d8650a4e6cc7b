"""One ring in one round at one member: its memory, and the arithmetic that the ring machine instructs.

Knows no peer and sends nothing. The accumulating vector is written in place: a chunk that was sent is
overwritten only by the final chunk, which exists only because the sent one has arrived.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ring_allreduce.errors import InvalidInput
from ring_allreduce.ring import Ring
from ring_allreduce.ring_events import AddChunk, AddOwn, DivideChunk, ScaleOwn, StoreChunk, StoreOwn


@dataclass(frozen=True)
class RingSpec:
    """One ring, the same at all its members."""

    name: str
    members: tuple[str, ...]
    """Names of endpoints, in passing order."""
    elements: int
    """Length of the flat vector."""
    chunk_elements: int
    """See chunks.chunk_elements_for."""
    dtype: torch.dtype = torch.float32


@dataclass
class Flight:
    """One ring in one round: its machine and its memory."""

    spec: RingSpec
    machine: Ring
    own: Tensor = field(default_factory=lambda: torch.empty(0))
    weight: float = 0.0
    buffer: Tensor | None = None
    sent: int = 0
    """Chunks that the machine said to send."""

    def room(self) -> Tensor:
        """The accumulating vector, made when the first number needs it."""
        if self.buffer is None:
            self.buffer = torch.empty(self.spec.elements, dtype=self.spec.dtype)
        return self.buffer

    def compute(
        self,
        instruction: StoreOwn | ScaleOwn | AddOwn | AddChunk | StoreChunk | DivideChunk,
        arrived: Tensor | None,
    ) -> None:
        """Carry out one instruction, in place; `arrived` holds the chunk that it answers."""
        if isinstance(instruction, StoreOwn):
            self.buffer = self.own
            return
        span = slice(instruction.start, instruction.stop)
        target = self.room()[span]
        match instruction:
            case ScaleOwn():
                torch.mul(self.own[span], self.weight, out=target)
            case AddOwn():
                target.add_(self.own[span], alpha=self.weight)
            case AddChunk():
                assert arrived is not None  # the machine gives it only in answer to a chunk
                torch.add(arrived, self.own[span], alpha=self.weight, out=target)
            case StoreChunk():
                assert arrived is not None
                target.copy_(arrived)
            case DivideChunk(total_weight=total):
                target.div_(total) if total else target.zero_()


def require_usable(rings: Sequence[RingSpec], me: str) -> dict[str, RingSpec]:
    """The rings of one member by name. Raises InvalidInput for one that it cannot be in, or two of one name."""
    for spec in rings:
        if not spec.dtype.is_floating_point or me not in spec.members:
            raise InvalidInput(f"ring {spec.name!r} needs a floating dtype and {me!r} in it: {spec}")
    by_name = {spec.name: spec for spec in rings}
    if len(by_name) != len(rings):
        raise InvalidInput(f"two rings have one name: {[spec.name for spec in rings]}")
    return by_name


def is_finite(vector: Tensor) -> bool:
    """Whether `vector` holds neither NaN nor infinities."""
    # The sum of finite numbers is finite unless it overflows: one cheap pass decides nearly always.
    return math.isfinite(vector.sum().item()) or bool(torch.isfinite(vector).all())
