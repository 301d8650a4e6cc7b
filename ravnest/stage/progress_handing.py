"""How a stage hands on what it has made when its cluster leaves, and what a stage does with what it takes.

In: the driver's word, and messages of members of the stage's rings. Out: pieces of progress, and for each ring what is
to be added to the stage's next contribution. A member gives in parts: what it contributed to each round that is not
merged, and what it has made since, which the next round would get. Which of these rounds have counted is known only
when it is out. It gives when it rests: it has drained, or waits at its lag limit. There all stages of a cluster have
made the same updates.

`due` and `added` belong to the thread that computes, all else to the one that owns the endpoint.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from ravnest.errors import InvalidInput
from ravnest.stage import donor_messages as dm
from ravnest.stage import messages as m
from ravnest.stage.rings import RoundRings
from ring_allreduce.transport import Delivery, Message

MOST_PARTS = 64
"""The most parts of what a member hands on: one for each round that it has not merged, and one more."""

MOST_SAMPLES = 1 << 32
"""The most samples behind what one member hands on: with many more, whoever adds it would have a weight that none has.
"""

MOST_NUMBER = 1e15
"""The largest number of a part. No weight moves so far in a round, and sums and means of such numbers stay within the
range in which numbers can be averaged. Where they travel as float16 it is as much less as that is smaller."""

Send = tuple[str, Message, list[Tensor]]


class Part(NamedTuple):
    """What was contributed to a round, or would be next, with so many samples."""

    round: int
    samples: int
    progress: Tensor


class HandedOn(Protocol):
    """What hands on: the stage's progress as its rounds of averaging leave it."""

    rings: RoundRings

    def unmerged(self, ring: int) -> tuple[int, list[Part]] | None:
        """The updates that the stage has made, and all that no merged round has of them in a ring; None while it may
        make more at any time, or that changes."""
        ...


@dataclass
class _Taking:
    request: int
    parts: list[Part] = field(default_factory=list)
    filled: int = 0
    """The numbers of the last part that have come."""


class ProgressHanding:
    """What one stage hands on, and what it has taken of others."""

    def __init__(self, rounds: HandedOn) -> None:
        self._rounds = rounds
        self._asked: dict[tuple[str, int], int] = {}
        """By who asked and ring: the number of the request that is still to be answered."""
        self._send: list[Send] = []
        self._next = 1
        self._taking: dict[tuple[int, str], _Taking] = {}
        """By ring and giver, as several clusters may hand on to one: what has come in part."""
        self._taken: dict[tuple[int, str], list[Part]] = {}
        self._lock = threading.Lock()
        self._due: dict[int, list[tuple[int, Part]]] = {}
        """By ring: from which round on this is added to what the stage contributes itself."""

    def take(self, delivery: Delivery) -> bool:
        """Take a delivery, if it is about this. Returns whether it was.

        A member that sends what cannot be its progress is not waited for any more: its cluster has its rounds yet.
        """
        message, sender = delivery.message, delivery.sender
        match message:
            case dm.TakeProgress() if sender == m.DRIVER:
                for ring, giver in message.sources:
                    self._ask(ring, giver)
            case dm.AddProgress() if sender == m.DRIVER:
                self._add(message)
            case dm.ProgressAsked():
                if sender in self._rounds.rings.takers(message.ring):
                    self._asked[sender, message.ring] = message.request
            case dm.ProgressPiece():
                self._piece(sender, message, delivery.tensors)
            case _:
                return False
        return True

    def pieces(self) -> Iterator[Send]:
        """What is to be sent now: to whom, the header, and the numbers."""
        for (peer, ring), request in list(self._asked.items()):
            made = self._rounds.unmerged(ring)
            if made is not None:
                del self._asked[peer, ring]
                self._send += [(peer, *piece) for piece in _pieces(ring, request, *made)]
        send, self._send = self._send, []
        yield from send

    def forget(self, peers: Iterable[str]) -> None:
        """These stages are out: nothing more comes of them. What has come whole stays."""
        gone = set(peers)
        self._send = [each for each in self._send if each[0] not in gone]
        self._asked = {key: request for key, request in self._asked.items() if key[0] not in gone}
        self._taking = {key: each for key, each in self._taking.items() if key[1] not in gone}

    def clear(self) -> None:
        """Another driver takes over, which knows of nothing that was handed on."""
        self._taking.clear()
        self._taken.clear()
        with self._lock:
            self._due.clear()

    def due(self, ring: int, round_: int) -> list[Part]:
        """What is to be added to the contribution to a round. This call forgets it."""
        with self._lock:
            all_ = self._due.pop(ring, [])
            later = [each for each in all_ if each[0] > round_]
            if later:
                self._due[ring] = later
        return [part for from_round, part in all_ if from_round <= round_]

    @property
    def held_bytes(self) -> int:
        """What it holds of others."""
        taking = [part for each in list(self._taking.values()) for part in each.parts]
        taken = [part for parts in list(self._taken.values()) for part in parts]
        with self._lock:
            due = [part for each in self._due.values() for _, part in each]
        return sum(part.progress.nbytes for part in (*taking, *taken, *due))

    def _ask(self, ring: int, giver: str) -> None:
        if giver not in self._rounds.rings.takers(ring):
            return  # it is lost by now
        self._taken.pop((ring, giver), None)
        self._taking[ring, giver] = _Taking(self._next)
        self._send.append((giver, dm.ProgressAsked(ring=ring, request=self._next), []))
        self._next += 1

    def _add(self, order: dm.AddProgress) -> None:
        parts = [each for each in self._taken.pop((order.ring, order.giver), []) if each.round not in order.counted]
        if not any(each.samples for each in parts):
            return
        progress = parts[0].progress
        for each in parts[1:]:
            progress = progress + each.progress
        whole = Part(0, sum(each.samples for each in parts), progress)
        with self._lock:
            self._due.setdefault(order.ring, []).append((order.from_round, whole))

    def _piece(self, sender: str, piece: dm.ProgressPiece, tensors: Sequence[Tensor]) -> None:
        key = piece.ring, sender
        taking = self._taking.get(key)
        if taking is None or taking.request != piece.request:
            return  # of a request that was given up
        try:
            self._check(taking, piece, tensors)
        except InvalidInput as error:
            del self._taking[key]
            self._send.append((m.DRIVER, dm.SourceFailed(ring=piece.ring, donor=sender, reason=str(error)), []))
            return
        if not piece.offset:
            whole = torch.empty(self._elements(piece.ring))
            taking.parts.append(Part(piece.round, piece.samples, whole))
            taking.filled = 0
        taking.parts[-1].progress[taking.filled : taking.filled + tensors[0].numel()] = tensors[0]
        taking.filled += tensors[0].numel()
        if piece.last:
            self._taken[key] = self._taking.pop(key).parts
            told = dm.ProgressTaken(ring=piece.ring, giver=sender, updates=piece.updates)
            self._send.append((m.DRIVER, told, []))

    def _check(self, taking: _Taking, piece: dm.ProgressPiece, tensors: Sequence[Tensor]) -> None:
        elements = self._elements(piece.ring)
        if len(tensors) != 1 or tensors[0].dtype != torch.float32 or tensors[0].dim() != 1:
            raise InvalidInput("it sent progress that is no vector of float32 numbers")
        numbers = tensors[0].numel()
        begun = bool(taking.parts) and taking.filled < elements
        if piece.offset != (taking.filled if begun else 0) or piece.offset + numbers > elements:
            raise InvalidInput(f"it sent {numbers} numbers from {piece.offset} of {elements}")
        if numbers > dm.PROGRESS_PIECE or (not numbers and elements) or len(taking.parts) > MOST_PARTS:
            raise InvalidInput(f"it sent {numbers} numbers of part {len(taking.parts)}")
        if begun and (piece.round, piece.samples) != taking.parts[-1][:2]:
            raise InvalidInput(f"it sent round {piece.round} before all of round {taking.parts[-1].round}")
        if piece.last and piece.offset + numbers < elements:
            raise InvalidInput(f"it ended after {piece.offset + numbers} numbers of {elements}")
        if not tensors[0].isfinite().all():
            raise InvalidInput("it sent progress with numbers that are not finite")
        samples = sum(each.samples for each in taking.parts) + (0 if begun else piece.samples)
        if samples > MOST_SAMPLES:
            raise InvalidInput(f"it sent progress of {samples:,} samples")
        most = self._most_number(piece.ring)
        if numbers and float(tensors[0].abs().max()) > most:
            raise InvalidInput(f"it sent progress with numbers beyond {most:.3g}")

    def _most_number(self, ring: int) -> float:
        """Whoever adds what is handed on answers for it: the sum of all parts has to be one that travels."""
        wire = self._rounds.rings.segments[ring].progress.wire
        return torch.finfo(torch.float16).max / (2 * (MOST_PARTS + 1)) if wire == "float16" else MOST_NUMBER

    def _elements(self, ring: int) -> int:
        return self._rounds.rings.segments[ring].progress.elements


def added(own: Tensor, weight: float, parts: Iterable[Part], weigh: Callable[[int], float]) -> tuple[Tensor, float]:
    """Return the mean of a stage's progress and of what it has taken, by weight, and the sum of the weights."""
    total = weight
    for part in parts:
        other = weigh(part.samples)
        total += other
        if total > 0:
            own = own + (part.progress - own) * (other / total)
    return own, total


def _pieces(
    ring: int, request: int, updates: int, parts: Sequence[Part]
) -> Iterator[tuple[dm.ProgressPiece, list[Tensor]]]:
    for number, part in enumerate(parts):
        elements = len(part.progress)
        for offset in range(0, max(1, elements), dm.PROGRESS_PIECE):
            numbers = part.progress[offset : offset + dm.PROGRESS_PIECE]
            last = number == len(parts) - 1 and offset + dm.PROGRESS_PIECE >= elements
            yield (
                dm.ProgressPiece(
                    ring=ring,
                    request=request,
                    updates=updates,
                    round=part.round,
                    samples=part.samples,
                    offset=offset,
                    last=last,
                ),
                [numbers],
            )
