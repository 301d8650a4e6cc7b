"""Whether what a message brought is what its header says, and numbers that can be averaged."""

import torch

from ring_allreduce.errors import ContributionRefused, InvalidInput
from ring_allreduce.ring.executor import Payload
from ring_allreduce.ring.messages import Chunk, HandedOn
from ring_allreduce.ring.wire_forms import Wire, decode
from ring_allreduce.transport.endpoint import Delivery


def checked(delivery: Delivery, message: Chunk | HandedOn, wire: Wire, dtype: torch.dtype, weight: float) -> Payload:
    """The span [start, stop) that `delivery` brought. Raises ContributionRefused, which names the sender."""
    try:
        numbers = decode(wire, delivery.tensors, message.stop - message.start, weight, dtype)
    except InvalidInput as error:
        raise ContributionRefused(delivery.sender, message.ring, message.round, str(error)) from None
    return Payload(numbers, delivery.tensors)
