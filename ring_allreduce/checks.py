"""Whether what a message brought is what its header says, and numbers that can be averaged."""

import torch
from torch import Tensor

from ring_allreduce.errors import ContributionRefused
from ring_allreduce.flight import is_finite
from ring_allreduce.messages import Chunk, HandedOn
from ring_allreduce.transport.endpoint import Delivery


def checked(delivery: Delivery, message: Chunk | HandedOn, dtype: torch.dtype) -> Tensor:
    """The span [start, stop) that `delivery` brought. Raises ContributionRefused, which names the sender."""

    def refuse(reason: str) -> ContributionRefused:
        return ContributionRefused(delivery.sender, message.ring, message.round, reason)

    if len(delivery.tensors) != 1:
        raise refuse(f"{len(delivery.tensors)} tensors in a chunk")
    (arrived,) = delivery.tensors
    if arrived.shape != (message.stop - message.start,) or arrived.dtype != dtype:
        span = f"[{message.start}, {message.stop})"
        raise refuse(f"{arrived.dtype} {tuple(arrived.shape)} for {dtype} {span}")
    if not is_finite(arrived):
        raise refuse("it holds NaN or infinite numbers")
    return arrived
