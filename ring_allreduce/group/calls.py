"""What a member of a group was asked for: when it joined, and in one call of average(). Knows times, not clocks."""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from ring_allreduce.ring.executor import RingSpec
from ring_allreduce.ring.reducer import RingResult
from ring_allreduce.ring.wire_forms import Wire, bytes_per_element
from ring_allreduce.transport.security.keys import Keys
from ring_timing import chunk_elements_for, direct_is_faster

OnLoss = Literal["continue", "fail"]

OVERTIME = 2.0
"""A call of one who goes on without the lost ends after so many times its time-out: by then they are left out."""

VERDICT_SIGNS = 6
"""So many signs of life after its time-out at the latest a member has heard who was late (liveness.py)."""


@dataclass(frozen=True)
class GroupOptions:
    """What `Group.join` was asked for."""

    name: str
    size: int
    host: str
    timeout_s: float
    wire: Wire
    on_loss: OnLoss
    keys: Keys | None = None

    @property
    def patient(self) -> bool:
        """Whether the group goes on without those who are lost."""
        return self.on_loss == "continue"


@dataclass
class Call:
    """One call of average(): what to average, as one flat vector, and where the mean goes."""

    tensors: Sequence[Tensor]
    vector: Tensor
    weight: float
    limit_s: float
    overdue_at_s: float = math.inf
    """When to say that others are late; never again once it was said."""
    most_s: float = math.inf
    deadline_s: float = math.inf
    round: int = 0
    result: RingResult | None = None
    merged: bool = False

    def begin(self, now_s: float, *, patient: bool, alive_every_s: float) -> None:
        """From now on its time runs."""
        least_s = self.limit_s + VERDICT_SIGNS * alive_every_s
        self.most_s = max(least_s, OVERTIME * self.limit_s) if patient else least_s
        self.deadline_s = now_s + self.most_s
        self.overdue_at_s = now_s + self.limit_s

    @cached_property
    def form(self) -> str:
        """What must be the same at all members: the shape and dtype of each tensor, in order; the first in words."""
        each = [f"{tuple(tensor.shape)} {tensor.dtype}" for tensor in self.tensors]
        digest = hashlib.blake2b("; ".join(each).encode(), digest_size=8).hexdigest()
        words = "; ".join([*each[:2], *(["..."] if len(each) > 2 else [])])
        return f"{self.vector.numel()} numbers, {self.vector.dtype}, as {words} [{digest}]"


def ring_spec(ring: str, members: tuple[str, ...], elements: int, dtype: torch.dtype, wire: Wire) -> RingSpec:
    """The ring that averages vectors of `elements` numbers among `members`, the same at all of them.

    Chunks, and whether everyone sends to everyone, are those of links that nobody measured (layout.py).
    """
    element_bytes = torch.empty((), dtype=dtype).element_size()
    direct = direct_is_faster(int(elements * bytes_per_element(wire, dtype)), len(members))
    chunk_elements = chunk_elements_for(None, element_bytes)
    return RingSpec(ring, members, elements, chunk_elements, dtype, wire, direct=direct)
