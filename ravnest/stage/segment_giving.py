"""The donor's end: what a stage gives of its segments to other members of their rings, which have joined.

In: requests of members, and their room for pieces. Out: pieces of the segments' state, as a safetensors file with the
names of `StageRounds.given`. No copy of the state is made: it is read where it lies, as for a checkpoint
(state_sending.py), and what a merge would change is copied before it.

It belongs to the thread that owns the endpoint.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from torch import Tensor

from ravnest.stage import donor_messages as dm
from ravnest.stage.rings import RoundRings
from ravnest.stage.state_sending import StateFile, StateSending, StateSource
from ring_allreduce.transport import Delivery

_MOST_EARLY: Final = 64
"""So many requests are kept of who is not known to follow a ring: the oldest go first."""


class AnchoredState(Protocol):
    """What a donor reads: the stage's state as its rounds of averaging leave it."""

    rings: RoundRings
    sending: StateSending
    merged: int

    def given(self, ring: int) -> Sequence[StateSource]:
        """What a stage that joins is given of a segment."""
        ...


@dataclass
class _Gift:
    """A segment on its way to one member."""

    request: int
    from_round: int
    room: int
    file: StateFile | None = None
    """None until its first piece is sent."""
    round: int = 0
    offset: int = 0


class SegmentGiving:
    """What one stage gives, by member and ring."""

    def __init__(self, rounds: AnchoredState) -> None:
        self._rounds = rounds
        self._gifts: dict[tuple[str, int], _Gift] = {}
        self._early: dict[tuple[str, int], dm.SegmentAsked] = {}
        """Requests of who is not known to follow the ring: the driver's word of that may still be on its way."""

    def take(self, delivery: Delivery) -> bool:
        """Take a delivery that asks for a segment, or gives room for more of one. Returns whether it was one.

        A request for what the sender neither is in nor follows has no effect before it does.
        """
        message, sender = delivery.message, delivery.sender
        if isinstance(message, dm.SegmentAsked):
            self._early.pop((sender, message.ring), None)
            if sender in self._rounds.rings.takers(message.ring):
                self._promise(sender, message)
            else:
                self._early[sender, message.ring] = message
                for key in list(self._early)[:-_MOST_EARLY]:
                    del self._early[key]
            return True
        if isinstance(message, dm.SegmentRoom):
            gift = self._gifts.get((sender, message.ring))
            if gift is not None and gift.request == message.request:
                gift.room = min(gift.room + message.pieces, dm.WINDOW)
            return True
        return False

    def forget(self, peers: Iterable[str]) -> None:
        """These stages are lost: they need nothing any more."""
        gone = set(peers)
        for key in [key for key in self._gifts if key[0] in gone]:
            self._drop(key)
        self._early = {key: asked for key, asked in self._early.items() if key[0] not in gone}

    @property
    def ready(self) -> bool:
        """Whether something may be sent now."""
        return any(self._may_send(gift) for gift in self._gifts.values())

    def pieces(self) -> Iterator[tuple[str, dm.SegmentPiece, list[Tensor]]]:
        """What may be sent now: to whom, the header and the bytes. There is nothing while weights change; `ready` says
        then that this is to be called again."""
        for sender, ring in list(self._early):
            if sender in self._rounds.rings.takers(ring):
                self._promise(sender, self._early.pop((sender, ring)))
        for key, gift in list(self._gifts.items()):
            if key[0] not in self._rounds.rings.takers(key[1]):
                self._drop(key)  # a warm spare that is lost
                continue
            while self._may_send(gift):
                with self._rounds.sending.unchanged() as still:
                    if not still:
                        return
                    made = self._next(key, gift)
                yield made

    def _promise(self, peer: str, asked: dm.SegmentAsked) -> None:
        self._drop((peer, asked.ring))
        self._gifts[peer, asked.ring] = _Gift(asked.request, asked.from_round, min(asked.pieces, dm.WINDOW))

    def _may_send(self, gift: _Gift) -> bool:
        return gift.room > 0 and (gift.file is not None or self._rounds.merged >= gift.from_round)

    def _next(self, key: tuple[str, int], gift: _Gift) -> tuple[str, dm.SegmentPiece, list[Tensor]]:
        peer, ring = key
        if gift.file is None:
            gift.round = self._rounds.merged
            gift.file = StateFile(f"ring {ring}", self._rounds.given(ring))
            self._rounds.sending.given.append(gift.file)
        piece = gift.file.take(dm.GIVEN_PIECE_BYTES)
        header = dm.SegmentPiece(
            ring=ring, request=gift.request, round=gift.round, offset=gift.offset, last=gift.file.empty
        )
        gift.offset += piece.numel()
        gift.room -= 1
        if gift.file.empty:
            self._drop(key)
        return peer, header, [piece]

    def _drop(self, key: tuple[str, int]) -> None:
        gift = self._gifts.pop(key, None)
        if gift is not None and gift.file is not None:
            self._rounds.sending.given.remove(gift.file)
