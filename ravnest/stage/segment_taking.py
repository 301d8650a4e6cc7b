"""The newcomer's end: a stage that joins takes its segments from donors, and believes nothing that it has not checked.

In: which donor gives which segment, and pieces as they arrive. Out: requests, room for more, and reports to the driver;
in the end the state that the stage starts from, with the round of each segment's anchor. It knows no socket or clock.

A donor that sends nothing for too long, another segment than this stage has, numbers that are not finite, or more than
the segment can have, has failed, and the driver names another.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Final

import torch
from torch import Tensor

from ravnest.checkpoints.weight_files import tensors_in
from ravnest.errors import InvalidInput
from ravnest.stage import donor_messages as dm
from ravnest.stage import messages as m
from ravnest.stage.setup import SegmentSetup, StageSetup
from ravnest.training.averaging import OUTER_PREFIX
from ring_allreduce.rounds import SilenceDeadline
from ring_allreduce.transport import Delivery, Message

FIRST_PIECE_S = 120.0
"""The longest time until a donor's first piece: it may have a round to merge before it gives anything."""

PIECE_FLOOR_S = 30.0
"""The shortest deadline for one more piece; pieces that come slowly make it longer."""

_HEAD_BYTES: Final = 1 << 20
_HEAD_BYTES_OF_TENSOR: Final = 1 << 10
_MOST_OUTER: Final = 4
"""The most tensors of a parameter in the outer optimizer's state."""

Send = tuple[str, Message]
"""A message, and whom it goes to."""


def given_weight(name: str) -> str:
    """The name of a weight or buffer in what donors send."""
    return f"weight:{name}"


def given_outer(key: str, name: str) -> str:
    """The name of a parameter's part of the outer optimizer's state in what donors send."""
    return f"optimizer:{key}:{name}"


@dataclass
class _Request:
    donor: str
    number: int
    deadline: SilenceDeadline
    round: int | None = None
    data: bytearray = field(default_factory=bytearray)


@dataclass(frozen=True)
class TakenSegment:
    """The state of a segment as of `round`."""

    round: int
    weights: Mapping[str, Tensor]
    outer: Mapping[tuple[str, str], Tensor]
    """By (parameter, key)."""


def taken_segment(round_: int, given: Mapping[str, Tensor]) -> TakenSegment:
    """The state of a segment as of a round, from tensors with the names that donors give them."""
    weights: dict[str, Tensor] = {}
    outer: dict[tuple[str, str], Tensor] = {}
    for said, tensor in given.items():
        kind, _, rest = said.partition(":")
        key, _, name = rest.partition(":")
        if kind == "weight":
            weights[rest] = tensor
        else:
            outer[name, key] = tensor
    return TakenSegment(round_, weights, outer)


class SegmentTaking:
    """What one stage takes from donors. It belongs to the thread that owns the endpoint."""

    def __init__(self, setup: StageSetup) -> None:
        self._segments = {segment.ring: segment for segment in setup.segments}
        self._forms = {spec.name: (spec.dtype, tuple(spec.shape)) for spec in setup.program.weight_specs}
        self._borrowed = [spec for spec in setup.program.borrowed if spec.requires_grad]
        self._requests: dict[int, _Request] = {}
        self._next = 1
        self.taken: dict[int, TakenSegment] = {}
        """By ring, the segments that are here."""
        self.pieces = 0
        """How many pieces have come."""

    @property
    def whole(self) -> bool:
        """Whether all segments are here."""
        return self.taken.keys() == self._segments.keys()

    @property
    def weights(self) -> dict[str, Tensor]:
        """The weights that the stage starts from. Those that it borrows are zeros, until their owner sends them."""
        borrowed = {spec.name: torch.zeros(spec.shape, dtype=spec.dtype) for spec in self._borrowed}
        return borrowed | {name: tensor for each in self.taken.values() for name, tensor in each.weights.items()}

    @property
    def outer(self) -> dict[tuple[str, str], Tensor]:
        """The outer optimizers' state, by (parameter, key)."""
        return {key: tensor for each in self.taken.values() for key, tensor in each.outer.items()}

    def ask(self, sources: Sequence[tuple[int, str]], from_round: int, now_s: float) -> list[Send]:
        """Ask these donors for their segments, as of `from_round` or later. A segment that is here is not asked for.

        Raises InvalidInput for a ring that this stage is not in.
        """
        out: list[Send] = []
        for ring, donor in sources:
            if ring not in self._segments:
                raise InvalidInput(f"this stage is in the rings {sorted(self._segments)}, not in {ring}")
            if ring in self.taken:
                continue
            deadline = SilenceDeadline(now_s, floor_s=FIRST_PIECE_S)
            self._requests[ring] = _Request(donor, self._next, deadline)
            ask = dm.SegmentAsked(ring=ring, request=self._next, from_round=from_round, pieces=dm.WINDOW)
            out.append((donor, ask))
            self._next += 1
        return out

    def take(self, delivery: Delivery, newest: int, now_s: float) -> list[Send] | None:
        """Take a piece. `newest`: the newest round that a donor can have merged. Returns what is to be sent; None for a
        delivery that is no piece."""
        piece = delivery.message
        if not isinstance(piece, dm.SegmentPiece):
            return None
        request = self._requests.get(piece.ring)
        if request is None or (request.donor, request.number) != (delivery.sender, piece.request):
            return []  # of a request that was given up
        try:
            self._check(piece, request, delivery.tensors, newest)
            request.round = piece.round
            request.data += delivery.tensors[0].numpy().data
            if piece.last:
                self.taken[piece.ring] = self._read(self._segments[piece.ring], request.data, piece.round)
        except InvalidInput as error:
            return [self._failed(piece.ring, str(error))]
        self.pieces += 1
        if piece.last:
            del self._requests[piece.ring]
            done = dm.SegmentTaken(ring=piece.ring, donor=request.donor, bytes=len(request.data))
            return [(m.DRIVER, done)]
        if len(request.data) <= dm.GIVEN_PIECE_BYTES:
            request.deadline = SilenceDeadline(now_s, floor_s=PIECE_FLOOR_S)
        request.deadline.heard(now_s)
        return [(request.donor, dm.SegmentRoom(ring=piece.ring, request=request.number, pieces=1))]

    def late(self, now_s: float) -> list[Send]:
        """Give up donors that have sent nothing for too long. Returns what the driver is told."""
        return [
            self._failed(ring, f"it has sent nothing for {request.deadline.silent_s(now_s):.0f} s")
            for ring, request in list(self._requests.items())
            if request.deadline.expired(now_s)
        ]

    def fails(self, donor: str, reason: str) -> list[Send]:
        """A donor has sent what no stage sends. Returns what the driver is told."""
        return [self._failed(ring, reason) for ring, each in list(self._requests.items()) if each.donor == donor]

    def outdated(self, first_round: int) -> list[Send]:
        """The stage takes part from `first_round` on: what is of a round before the last of the others is of no use.
        Returns what the driver is told."""
        out: list[Send] = []
        for ring in [ring for ring, each in self.taken.items() if each.round < first_round - 1]:
            reason = f"round {self.taken.pop(ring).round} is before the first, {first_round}"
            out.append((m.DRIVER, dm.SourceFailed(ring=ring, donor="", reason=reason)))
        return out

    def _failed(self, ring: int, reason: str) -> Send:
        request = self._requests.pop(ring)
        return m.DRIVER, dm.SourceFailed(ring=ring, donor=request.donor, reason=reason)

    def _check(self, piece: dm.SegmentPiece, request: _Request, tensors: Sequence[Tensor], newest: int) -> None:
        if len(tensors) != 1 or tensors[0].dtype != torch.uint8 or tensors[0].dim() != 1:
            raise InvalidInput("it sent a piece that is no vector of bytes")
        if not 0 < tensors[0].numel() <= dm.GIVEN_PIECE_BYTES or piece.offset != len(request.data):
            raise InvalidInput(f"it sent {tensors[0].numel()} bytes from {piece.offset}, not from {len(request.data)}")
        if piece.round > newest or request.round not in (None, piece.round):
            raise InvalidInput(f"it sent round {piece.round}, where {request.round or newest} is the newest")
        if len(request.data) + tensors[0].numel() > self._most_bytes(self._segments[piece.ring]):
            raise InvalidInput("it sent more bytes than the segment has")

    def _most_bytes(self, segment: SegmentSetup) -> int:
        names = (*segment.names, *segment.constants)
        held = sum(max(4, dtype.itemsize) * prod(shape) for dtype, shape in (self._forms[name] for name in names))
        outer = _MOST_OUTER * 4 * segment.progress.elements
        return held + outer + _HEAD_BYTES + _HEAD_BYTES_OF_TENSOR * len(names) * (1 + _MOST_OUTER)

    def _read(self, segment: SegmentSetup, data: bytearray, round_: int) -> TakenSegment:
        """The segment in these bytes. Raises InvalidInput unless it is just what this stage has."""
        found = tensors_in(bytes(data))
        weights = {}
        for name in (*segment.names, *segment.constants):
            tensor = found.pop(given_weight(name), None)
            dtype, shape = self._forms[name]
            if name in segment.parameters and dtype.itemsize < torch.float32.itemsize:
                dtype = torch.float32  # the anchor of narrow weights is wider than they
            if tensor is None or (tensor.dtype, tuple(tensor.shape)) != (dtype, shape):
                is_ = "nothing" if tensor is None else f"{tensor.dtype} {tuple(tensor.shape)}"
                raise InvalidInput(f"it sent {is_} for {name!r}, not {dtype} {shape}")
            if name in segment.parameters and not tensor.isfinite().all():
                raise InvalidInput(f"it sent {name!r} with numbers that are not finite")
            weights[name] = tensor
        outer: dict[tuple[str, str], Tensor] = {}
        for said, tensor in found.items():
            kind, _, rest = said.partition(":")
            key, _, name = rest.partition(":")
            fits = kind == "optimizer" and key.startswith(OUTER_PREFIX) and name in segment.parameters
            if not fits or tensor.dtype != torch.float32 or tuple(tensor.shape) != self._forms[name][1]:
                raise InvalidInput(f"it sent {said!r}, which is nothing of this segment")
            if not tensor.isfinite().all():
                raise InvalidInput(f"it sent {said!r} with numbers that are not finite")
            outer[name, key] = tensor
        keys = {key for _, key in outer}
        if outer.keys() != {(name, key) for name in segment.parameters for key in keys}:
            raise InvalidInput("it sent the outer optimizer's state of some parameters only")
        return TakenSegment(round_, weights, outer)
