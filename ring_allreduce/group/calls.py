"""One call of average(): its tensors as one flat vector and back, its form, and when its time is up.

In: the tensors that a caller gives, and the times of a clock that is not read here. Out: the flat vector that is
averaged, and the tensors filled from the mean. Numbers are copied only where they must be.
"""

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ring_allreduce.errors import InvalidInput
from ring_allreduce.ring.executor import Empty, ordinary
from ring_allreduce.ring.uncommitted_rounds import RingResult

OVERTIME = 2.0
"""A call of a group that goes on without the lost ends after this many times its time-out: by then they are left
out.
"""

VERDICT_SIGNS = 6
"""A member has heard who was late after this many signs of life beyond its time-out at the latest (liveness.py)."""


@dataclass
class Call:
    """One call of average(): what to average, as one flat vector, and where the mean goes."""

    tensors: Sequence[Tensor]
    vector: Tensor
    weight: float
    limit_s: float
    overdue_at_s: float = math.inf
    """The time at which to say that others are late; it is infinite once that was said."""
    most_s: float = math.inf
    deadline_s: float = math.inf
    round: int = 0
    result: RingResult | None = None
    merged: bool = False

    def begin(self, now_s: float, *, patient: bool, alive_every_s: float) -> None:
        """Start the call's time."""
        least_s = self.limit_s + VERDICT_SIGNS * alive_every_s
        self.most_s = max(least_s, OVERTIME * self.limit_s) if patient else least_s
        self.deadline_s = now_s + self.most_s
        self.overdue_at_s = now_s + self.limit_s

    @cached_property
    def form(self) -> str:
        """Return what must be the same at all members: the shape and dtype of each tensor, in order; the first in
        words.
        """
        each = [f"{tuple(tensor.shape)} {tensor.dtype}" for tensor in self.tensors]
        digest = hashlib.blake2b("; ".join(each).encode(), digest_size=8).hexdigest()
        words = "; ".join([*each[:2], *(["..."] if len(each) > 2 else [])])
        return f"{self.vector.numel()} numbers, {self.vector.dtype}, as {words} [{digest}]"


def listed(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Return `tensors` as a list: an iterator would be empty when it is looked at again.

    Raises InvalidInput for what is no collection of dense tensors with numbers in them.
    """
    found = tensors if isinstance(tensors, Tensor | str | Mapping) or not isinstance(tensors, Iterable) else [*tensors]
    if not isinstance(found, list):
        raise InvalidInput(f"a list of tensors is averaged, not a {type(found).__name__}")
    for one in found:
        if not isinstance(one, Tensor):
            raise InvalidInput(f"a list of tensors is averaged; it holds a {type(one).__name__}")
        if one.layout != torch.strided or one.is_meta:
            raise InvalidInput(f"a tensor to average is dense and holds numbers; got {one.layout} on {one.device}")
    return found


def flatten(tensors: Sequence[Tensor], empty: Empty = ordinary) -> Tensor:
    """Return all numbers in a row: float32, or float64 when a tensor is. One tensor may come back as a view of itself.

    `empty`: makes the vector that several are put into.

    Raises InvalidInput for tensors that are not floating, or that have several numbers in one place: those cannot be
    written.
    """
    if any(not tensor.dtype.is_floating_point for tensor in tensors):
        raise InvalidInput(f"only floating tensors can be averaged; got {[str(t.dtype) for t in tensors]}")
    if any(_overlaps(tensor) for tensor in tensors):
        raise InvalidInput("a tensor that is expanded has several numbers in one place, and cannot be written")
    wide = any(tensor.dtype == torch.float64 for tensor in tensors)
    dtype = torch.float64 if wide else torch.float32
    parts = [tensor.detach().to("cpu", dtype).reshape(-1) for tensor in tensors]
    if len(parts) == 1:
        return parts[0].contiguous()
    vector = empty(sum(part.numel() for part in parts), dtype)
    return torch.cat(parts, out=vector) if parts else vector


def unflatten(vector: Tensor, tensors: Sequence[Tensor]) -> None:
    """Write the numbers of `vector` into `tensors`, each in its own dtype, shape and place."""
    parts = torch.split(vector, [tensor.numel() for tensor in tensors])
    with torch.no_grad():
        for tensor, part in zip(tensors, parts, strict=True):
            tensor.copy_(part.view(tensor.shape))


def _overlaps(tensor: Tensor) -> bool:
    """Say whether two indices of `tensor` may mean one place in memory, as far as strides tell."""
    reach = 0
    for stride, size in sorted(
        (stride, size) for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1
    ):
        if stride <= reach:
            return tensor.numel() > 0
        reach += stride * (size - 1)
    return False
