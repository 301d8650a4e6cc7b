"""One ring in one round at one member: its memory, and the arithmetic on tensors that the machine instructs.

In: the instructions of a ring machine or direct machine, this member's contribution, and the chunks that arrived. Out:
the average, the tensors of the chunks to send, and the residual, which is what compression took away. It knows no peer
and sends nothing.

Nothing is written to a chunk that arrived: it may lie in its sender's memory. Partial sums of exact numbers are put
where their average will be, and sent from there: the average comes only after everybody has added its part, and has
read what was there before.
"""

import hashlib
import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ring_allreduce.errors import ContributionRefused, InvalidInput
from ring_allreduce.ring.direct_machine import DirectMachine
from ring_allreduce.ring.events import (
    AddHeld,
    AddOwn,
    DivideChunk,
    HoldChunk,
    ScaleOwn,
    SendChunk,
    StoreChunk,
    StoreOwn,
    SumChunks,
    TakeHeld,
    weight_fits,
)
from ring_allreduce.ring.group_machine import GroupMachine
from ring_allreduce.ring.messages import Chunk, HandedOn
from ring_allreduce.ring.ring_machine import RingMachine
from ring_allreduce.ring.robust_mean import ContributionFigures, RobustRule, Sums, robust_mean
from ring_allreduce.ring.statistics import Burst
from ring_allreduce.ring.wire_forms import Wire, check_wire, decode, encode, most_arriving
from ring_allreduce.transport.endpoint import Delivery

Arithmetic = StoreOwn | ScaleOwn | HoldChunk | TakeHeld | AddHeld | AddOwn | DivideChunk | StoreChunk | SumChunks
Machine = RingMachine | GroupMachine | DirectMachine


@dataclass(frozen=True)
class RingSpec:
    """One ring, the same at all its members."""

    name: str
    members: tuple[str, ...]
    """Names of endpoints, in passing order."""
    elements: int
    """Length of the flat vector."""
    chunk_elements: int
    """Elements of one message, as ring_timing.divide chooses them."""
    dtype: torch.dtype = torch.float32
    wire: Wire = "exact"
    """The form in which numbers travel, see wire_forms.py."""
    shares: tuple[float, ...] | None = None
    """The part of the vector in each member's block, sum 1; None: equal blocks."""
    direct: bool = False
    """Everyone sends its part to everyone (direct_machine.py), as ring_timing.divide chooses."""
    groups: tuple[int, ...] | None = None
    """A ring of rings (group_machine.py): the places at which its groups begin, see ring_timing.Groups."""
    robust: RobustRule | None = None
    """The rule of the average (robust_mean.py), which needs `direct`; None: the weighted mean."""

    @property
    def form(self) -> tuple[str, int, torch.dtype, Wire, RobustRule | None]:
        """What stays the same from epoch to epoch."""
        return self.name, self.elements, self.dtype, self.wire, self.robust

    def machine(self, me: str, round: int, epoch: int) -> Machine:  # noqa: A002 - our word
        """Return a new machine for one round. Raises InvalidInput for a ring that cannot be."""
        if self.direct:
            each = self.robust is not None
            return DirectMachine(self.members, me, self.elements, self.chunk_elements, round, epoch, each=each)
        if self.groups is not None:
            return GroupMachine(self.members, me, self.elements, self.chunk_elements, round, epoch, self.groups)
        return RingMachine(self.members, me, self.elements, self.chunk_elements, round, epoch, self.shares)


@dataclass
class RingContribution:
    """This member's part in one ring and round. The vector is the caller's own memory."""

    vector: Tensor
    weight: float
    counters: tuple[int, ...]
    carry: Tensor | None = None
    """What compression took from earlier rounds: added to weight · vector, the same when the round starts again."""
    residual: Tensor | None = None
    """What compression took in this round, so far as it went: the next round's carry once this one is committed."""


Empty = Callable[[int, torch.dtype], Tensor]
"""A function that makes a vector of so many elements and any content, such as an endpoint's empty()."""


Completed = Callable[[RingSpec, int, int, Tensor], None]
"""Takes the ring, the round, the first element, and the numbers of a part of the average that is complete."""


def ordinary(elements: int, dtype: torch.dtype) -> Tensor:
    """Make a vector in ordinary memory of this process."""
    return torch.empty(elements, dtype=dtype)


class BufferPool:
    """Vectors that nobody reads any more, to be used again: fresh pages cost more than the numbers written to them."""

    def __init__(self, empty: Empty = ordinary) -> None:
        self._empty = empty
        self._free: dict[tuple[int, torch.dtype], list[Tensor]] = {}
        self._out: dict[int, Tensor] = {}

    def take(self, elements: int, dtype: torch.dtype) -> Tensor:
        """Return a vector (elements,) of any content."""
        free = self._free.get((elements, dtype))
        vector = free.pop() if free else self._empty(elements, dtype)
        if elements:
            self._out[vector.data_ptr()] = vector
        return vector

    def give(self, vector: Tensor) -> None:
        """Take back what nobody reads any more; a vector that was not lent is left alone."""
        lent = self._out.pop(vector.data_ptr(), None)
        if lent is not None:
            self._free.setdefault((lent.numel(), lent.dtype), []).append(lent)

    def forget(self, vector: Tensor) -> None:
        """Never use this vector again: somebody may go on reading it."""
        self._out.pop(vector.data_ptr(), None)


_NOTHING = torch.empty(0)

DIGEST_BYTES = 32
"""Of a contribution. Whoever looks for two contributions with one digest of this length finds none."""


@dataclass
class Payload:
    """One chunk: its numbers, and the tensors that carry them on the wire once those are known."""

    numbers: Tensor
    encoded: Sequence[Tensor] | None


def checked(delivery: Delivery, message: Chunk | HandedOn, spec: RingSpec) -> Payload:
    """Return the numbers of the span [start, stop) of the ring `spec` that `delivery` brought.

    Raises ContributionRefused, which names the sender, unless they have the form that they should have and that
    length, are finite, and so large at most that what this member computes with them is finite, too.
    """
    wire: Wire = spec.wire if isinstance(message, Chunk) else "exact"
    weight, most = 1.0, math.inf
    try:
        if isinstance(message, Chunk) and message.phase != "gather":
            members, weight = len(spec.members), message.weight
            if not weight_fits(weight, members):
                raise InvalidInput(f"weight {weight}")
            most = most_arriving(spec.dtype, members, weight, whole=message.phase == "reduce")
        numbers = decode(wire, delivery.tensors, message.stop - message.start, weight, spec.dtype, most)
    except InvalidInput as error:
        raise ContributionRefused(delivery.sender, message.ring, message.round, str(error)) from None
    return Payload(numbers, delivery.tensors)


class RingExecutor:
    """Carries out what the machine of one ring instructs in one round, on the memory of that round."""

    def __init__(
        self,
        spec: RingSpec,
        machine: Machine,
        spare: BufferPool,
        completed: Completed = lambda *_: None,
    ) -> None:
        """The memory of the average comes from the pool `spare`. `completed` is called with each part of the average
        that this member is to pass on to those who follow the ring: every part is one member's."""
        self._completed = completed
        self.spec = spec
        self.machine = machine
        self.average: Tensor | None = None
        """The vector that is filled; None before the first number."""
        self.residual: Tensor | None = None
        """What compression took from the sums that this member sent; None for exact wires."""
        self.sent = 0
        """Chunks that the machine said to send."""
        self.received_bytes = 0
        """Of the chunks that came, as they travelled, without headers."""
        self.begun_s: float | None = None
        """When the contribution was ready; None while it is not."""
        self.bursts: dict[str, Burst] = {}
        """How fast the own parts of others arrive, by sender."""
        self._spare = spare
        self._own = _NOTHING
        self._weight = 1.0
        self._carry: Tensor | None = None
        self._held: dict[tuple[str, int, int], Payload] = {}
        self._payload = Payload(self._own, None)
        self._sums = [Sums() for _ in spec.members] if spec.robust else []
        self._digests: list[dict[int, bytes]] = [{} for _ in self._sums]
        """By member: of each span of what it contributed, by its first element. Spans may be summed in any order."""
        self._weights: tuple[float, ...] = ()

    def begin(self, contribution: RingContribution) -> None:
        """Take this member's contribution, which is ready."""
        self._own, self._weight, self._carry = contribution.vector, contribution.weight, contribution.carry
        if self.spec.wire != "exact":
            self.residual = torch.zeros(self.spec.elements, dtype=self.spec.dtype)

    def arrive(self, payload: Payload) -> None:
        """Take the chunk that the next instructions answer."""
        self._payload = payload
        self.received_bytes += sum(tensor.nbytes for tensor in payload.encoded or ())

    def room(self) -> Tensor:
        """Return the average, made when the first number needs it."""
        if self.average is None:
            self.average = self._spare.take(self.spec.elements, self.spec.dtype)
        return self.average

    def compute(self, instruction: Arithmetic) -> None:
        """Carry out one instruction."""
        _DO[type(instruction)](self, instruction)

    def figures(self) -> dict[str, ContributionFigures]:
        """Return what each member's contribution was like; nothing where the rule does not see them."""
        known = zip(self.spec.members, self._sums, self._weights, strict=False)
        return {member: sums.figures(weight) for member, sums, weight in known}

    def digests(self) -> dict[str, str]:
        """Return the BLAKE2b digest of each member's numbers and weight as they came here; nothing where the rule does
        not see them. A member that sends all others the same has one digest everywhere."""
        return {
            member: hashlib.blake2b(
                b"".join([struct.pack("<d", weight), *(spans[start] for start in sorted(spans))]),
                digest_size=DIGEST_BYTES,
            ).hexdigest()
            for member, spans, weight in zip(self.spec.members, self._digests, self._weights, strict=False)
        }

    def tensors(self, send: SendChunk) -> Sequence[Tensor]:
        """Return the tensors that carry the payload on the wire."""
        payload = self._payload
        if payload.encoded is None:
            residual = None if self.residual is None else self.residual[send.start : send.stop]
            payload.encoded = encode(self.spec.wire, payload.numbers, send.weight, residual)
            if residual is not None:
                # From here on it is what the others make of it.
                payload.numbers = self._decoded(payload.encoded, send.stop - send.start, send.weight)
        return payload.encoded

    def _scale_own(self, do: ScaleOwn) -> None:
        own = self._own[do.start : do.stop]
        if self._weight != 1.0 or self._carry is not None:
            # In a direct exchange others read it until after my average is there.
            target = None if self.residual is not None or self.spec.direct else self.room()[do.start : do.stop]
            own = torch.mul(own, self._weight, out=target)
            if self._carry is not None and (self._weight or not self.spec.robust):
                own.add_(self._carry[do.start : do.stop])
            elif self._carry is not None and self.residual is not None:
                # A robust rule does not see who has no weight: what it carries comes with its next contribution.
                self.residual[do.start : do.stop].add_(self._carry[do.start : do.stop])
        self._payload = Payload(own, None)

    def _hold(self, do: HoldChunk) -> None:
        self._held[do.sender, do.block, do.start] = self._payload

    def _take_held(self, do: TakeHeld) -> None:
        self._payload = self._held.pop((do.sender, do.block, do.start))

    def _add_held(self, do: AddHeld) -> None:
        held, numbers = self._held.pop((do.sender, do.block, do.start)).numbers, self._payload.numbers
        target = self.room()[do.start : do.stop] if self.residual is None else numbers
        self._payload = Payload(torch.add(numbers, held, out=target), None)

    def _store(self, do: StoreChunk) -> None:
        target, payload = self.room()[do.start : do.stop], self._payload
        if target.data_ptr() != payload.numbers.data_ptr():
            target.copy_(payload.numbers)
        if self.residual is None:
            self._payload = Payload(target, [target])  # what goes on from here frees what arrived

    def _store_own(self, do: StoreOwn) -> None:
        self.average = self._own
        self.residual = self._carry
        size = self.spec.chunk_elements
        for start in range(0, self.spec.elements, size):
            self._completed(self.spec, self.machine.round, start, self._own[start : start + size])

    def _add_own(self, do: AddOwn) -> None:
        numbers, own = self._payload.numbers, self._own[do.start : do.stop]
        if self.residual is None:
            total = torch.add(numbers, own, alpha=self._weight, out=self.room()[do.start : do.stop])
        else:  # decoded: they lie in memory of this member
            total = numbers if self._carry is None else numbers.add_(self._carry[do.start : do.stop])
            total.add_(own, alpha=self._weight)
        self._payload = Payload(total, None)

    def _divide(self, do: DivideChunk) -> None:
        mean, start, stop, total = self._payload.numbers, do.start, do.stop, do.total_weight
        if not total and self.residual is not None:
            # Members without weight still send what they carried: it is not lost with the sum.
            self.residual[start:stop].add_(mean)
        mean.div_(total) if total else mean.zero_()
        if self.residual is None:
            self._payload = Payload(mean, [mean])
            self._completed(self.spec, self.machine.round, start, mean)
            return
        error = torch.zeros_like(mean)
        encoded = encode(self.spec.wire, mean, 1.0, error)
        self.residual[start:stop].add_(error, alpha=total)
        self._payload = Payload(self._decoded(encoded, stop - start, 1.0), encoded)
        self._completed(self.spec, self.machine.round, start, self._payload.numbers)

    def _sum(self, do: SumChunks) -> None:
        total = do.total_weight
        parts = [self._held.pop((member, 0, do.start)).numbers for member in self.spec.members]
        target = self.room()[do.start : do.stop]
        if self.spec.robust:
            self._weights = do.weights
            for spans, part in zip(self._digests, parts, strict=True):
                spans[do.start] = hashlib.blake2b(part.numpy().data, digest_size=DIGEST_BYTES).digest()
            target.copy_(robust_mean(self.spec.robust, parts, do.weights, self._sums))
        else:
            self._mean(parts, total, target)
        if self.spec.members[do.start // self.spec.chunk_elements % len(self.spec.members)] == self.machine.me:
            self._completed(self.spec, self.machine.round, do.start, target)

    @staticmethod
    def _mean(parts: Sequence[Tensor], total: float, target: Tensor) -> None:
        first, second, *others = parts
        torch.add(first, second, out=target)
        for part in others:
            target.add_(part)
        # Sums and quotients are rounded alike on every machine; a product with a sum, or a reciprocal, might not be.
        if total != 1.0:
            target.div_(total) if total else target.zero_()

    def _decoded(self, encoded: Sequence[Tensor], elements: int, weight: float) -> Tensor:
        return decode(self.spec.wire, encoded, elements, weight, self.spec.dtype)


_DO: dict[type[Arithmetic], Callable[[RingExecutor, Any], None]] = {
    StoreOwn: RingExecutor._store_own,
    ScaleOwn: RingExecutor._scale_own,
    HoldChunk: RingExecutor._hold,
    TakeHeld: RingExecutor._take_held,
    AddHeld: RingExecutor._add_held,
    AddOwn: RingExecutor._add_own,
    DivideChunk: RingExecutor._divide,
    StoreChunk: RingExecutor._store,
    SumChunks: RingExecutor._sum,
}


def require_usable(rings: Sequence[RingSpec], me: str) -> dict[str, RingSpec]:
    """Return the rings of one member by name. Raises InvalidInput for one that it cannot be in, or two of one name."""
    for spec in rings:
        check_wire(spec.wire, spec.dtype)
        if me not in spec.members:
            raise InvalidInput(f"ring {spec.name!r} has no member {me!r}: {spec.members}")
        if spec.robust and not (spec.direct and spec.dtype == torch.float32):
            raise InvalidInput(f"ring {spec.name!r}: {spec.robust} needs a direct exchange of float32 numbers")
        spec.machine(me, 0, 0)
    by_name = {spec.name: spec for spec in rings}
    if len(by_name) != len(rings):
        raise InvalidInput(f"two rings have one name: {[spec.name for spec in rings]}")
    return by_name
