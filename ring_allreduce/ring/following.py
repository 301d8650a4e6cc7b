"""Followers of a ring: they get its averages, contribute nothing, and nobody waits for them.

In at a member: the parts of an average as they are completed. Out: pieces for the followers, each part from the one
member that completes it, so that a follower costs the members together one vector of uplink in each round. In at a
follower: these pieces. Out: whole averages, the same bytes that the members hold.

A member keeps at most `most_behind` rounds for a follower that takes nothing: then it sends no more until it is told
anew who follows. A follower that misses something learns so at the commit, and asks a member for the state itself.

Who completed a part may be lost before it has sent it. Each member therefore holds a copy of a followed ring's last
average until its followers have said that they took it, and sends a follower what it lacks of it, once.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ring_allreduce.errors import InvalidInput
from ring_allreduce.ring.executor import RingSpec
from ring_allreduce.ring.messages import MOST_SPANS, FollowedMissing, FollowedPiece, FollowedTaken, FollowedWhole
from ring_allreduce.ring.uncommitted_rounds import RingResult
from ring_allreduce.ring.wire_forms import decode
from ring_allreduce.rounds.events import RoundKey
from ring_allreduce.transport.endpoint import Delivery, Endpoint
from ring_allreduce.transport.outbox import Outbox

AGAIN_ELEMENTS = 1 << 16
"""What is sent again travels in pieces of so many numbers."""

Span = tuple[int, int]


class Feeding:
    """What one member sends to those who follow its rings. Belongs to the thread that owns `endpoint`."""

    def __init__(self, endpoint: Endpoint, most_behind: int) -> None:
        """`most_behind`: so many rounds may be on their way to a follower."""
        self._outbox = Outbox(endpoint)
        self._most_behind = most_behind
        self._followers: Mapping[str, Collection[str]] = {}
        self._sent: dict[str, set[int]] = {}
        """By follower: the rounds that it is being sent and has not taken."""
        self._late: set[str] = set()
        self._held: dict[str, tuple[RingResult, set[str]]] = {}
        """By ring: a copy of its last average, and the followers that have neither taken it nor asked for it."""

    def feed(self, followers: Mapping[str, Collection[str]]) -> None:
        """From now on these follow: by ring, names of endpoints that are connected. Whoever was late is fed again."""
        for gone in {each for names in self._followers.values() for each in names}:
            if all(gone not in names for names in followers.values()):
                self._outbox.forget(gone)
        self._followers = dict(followers)
        self._sent = {}
        self._late = set()

    def completed(self, ring: RingSpec, round: int, start: int, numbers: Tensor) -> None:  # noqa: A002 - our word
        """A part of an average is complete, which this member passes on: RingExecutor's `completed`."""
        for follower in self._followers.get(ring.name, ()) if numbers.numel() else ():
            if self._may_send(follower, round):
                piece = FollowedPiece(ring=ring.name, round=round, start=start, stop=start + numbers.numel())
                # A copy: the memory of an average is used again after the commit, for which no follower is waited for.
                self._outbox.put(follower, piece, [numbers.clone()])

    def whole(self, result: RingResult, *, tells: bool) -> None:
        """The average of a ring is whole at this member, which `tells` the followers so, as one member does."""
        followers = self._followers.get(result.ring, ())
        self._held.pop(result.ring, None)
        if followers:
            self._held[result.ring] = replace(result, average=result.average.clone()), set(followers)
        for follower in followers:
            if tells and self._may_send(follower, result.round):
                self._outbox.put(follower, _whole(result))

    def on_delivery(self, delivery: Delivery) -> bool:
        """Take what a follower says. Returns whether it was that."""
        message, sender = delivery.message, delivery.sender
        if isinstance(message, FollowedMissing):
            self._send_again(sender, message)
            return True
        if not isinstance(message, FollowedTaken):
            return False
        self._sent[sender] = {number for number in self._sent.get(sender, set()) if number > message.round}
        for ring, (result, waiting) in list(self._held.items()):
            if result.round <= message.round:
                waiting.discard(sender)
                if not waiting:
                    del self._held[ring]
        return True

    def _send_again(self, follower: str, missing: FollowedMissing) -> None:
        result, waiting = self._held.get(missing.ring, (None, set[str]()))
        if result is None or result.round != missing.round or follower not in waiting:
            return  # it is not held any more, or was asked for before
        if not all(start < stop <= result.average.numel() for start, stop in missing.spans):
            return  # no part of this ring: a follower cannot end a stage
        waiting.discard(follower)
        for start, stop in missing.spans:
            for at in range(start, stop, AGAIN_ELEMENTS):
                end = min(at + AGAIN_ELEMENTS, stop)
                piece = FollowedPiece(ring=missing.ring, round=missing.round, start=at, stop=end)
                self._outbox.put(follower, piece, [result.average[at:end]])
        self._outbox.put(follower, _whole(result))

    def pump(self) -> None:
        """Send what the endpoint has room for."""
        self._outbox.flush()

    def stop(self) -> None:
        """An epoch ends: what was not sent yet of its rounds is not sent in the next."""
        self._outbox.clear()

    def _may_send(self, follower: str, round: int) -> bool:  # noqa: A002 - our word
        sent = self._sent.setdefault(follower, set())
        if follower not in self._late and len(sent | {round}) > self._most_behind:
            self._late.add(follower)
            self._outbox.forget(follower)
        if follower in self._late:
            return False
        sent.add(round)
        return True


def _whole(result: RingResult) -> FollowedWhole:
    return FollowedWhole(
        ring=result.ring, round=result.round, total_weight=result.total_weight, counters=result.counters
    )


@dataclass
class _Arriving:
    """One average on its way to a follower, in one epoch."""

    epoch: int
    average: Tensor
    pieces: dict[int, int] = field(default_factory=dict)
    """By first element: the one after the last. What was sent again may overlap with what came all the same."""
    received: int = 0
    end: FollowedWhole | None = None

    @property
    def whole(self) -> bool:
        return self.end is not None and self.received >= self.average.numel() and not self.missing

    @property
    def missing(self) -> list[Span]:
        """The spans that have not come, at most MOST_SPANS of them; the last covers what else may be missing."""
        spans, at = [], 0
        for start in [*sorted(self.pieces), self.average.numel()]:
            if start > at:
                spans.append((at, start))
            at = max(at, self.pieces.get(start, start))
        return spans if len(spans) <= MOST_SPANS else [*spans[: MOST_SPANS - 1], (spans[MOST_SPANS - 1][0], at)]


class FollowedRounds:
    """The averages that one follower gets. Belongs to the thread that owns its endpoint."""

    def __init__(self, elements: Mapping[str, int], most_rounds: int) -> None:
        """`elements`: the length of each ring's vector, float32 numbers. Averages of at most `most_rounds` beyond the
        last commit are kept."""
        self._elements = dict(elements)
        self._most_rounds = most_rounds
        self._arriving: dict[RoundKey, _Arriving] = {}
        self.committed = 0
        """Averages up to this round are not taken any more."""
        self._final = 0

    def on_delivery(self, delivery: Delivery) -> bool:
        """Take a piece of an average. Returns whether it was one; one that nobody can use has no effect.

        Raises InvalidInput for what no member sends.
        """
        message = delivery.message
        if not isinstance(message, FollowedPiece | FollowedWhole):
            return False
        arriving = self._of(message, delivery.epoch)
        if arriving is None:
            return True
        if isinstance(message, FollowedWhole):
            arriving.end = message
            return True
        size = message.stop - message.start
        if size < 1 or message.stop > arriving.average.numel():
            raise InvalidInput(f"[{message.start}, {message.stop}) is no part of ring {message.ring!r}")
        numbers = decode("exact", delivery.tensors, size, 1.0, torch.float32)
        if message.start not in arriving.pieces or arriving.pieces[message.start] < message.stop:
            arriving.pieces[message.start] = message.stop
            arriving.received += size
            arriving.average[message.start : message.stop] = numbers
        return True

    def resumed(self, epoch: int, kept: Collection[int]) -> None:
        """An epoch is under way, in which all rounds but those that are `kept` start again."""
        for key, arriving in list(self._arriving.items()):
            if arriving.epoch < epoch and key[1] not in kept and key[1] > self._final:
                del self._arriving[key]

    def final(self, round: int) -> None:  # noqa: A002 - our word
        """The rounds up to this one are committed in the run: their averages are the same in each epoch from now on."""
        self._final = max(self._final, round)

    def is_ended(self, ring: str, round: int) -> bool:  # noqa: A002 - our word
        """Whether the member that says so has sent all that it completed of an average."""
        arriving = self._arriving.get((ring, round))
        return arriving is not None and arriving.end is not None

    def missing(self, ring: str, round: int) -> list[Span]:  # noqa: A002 - our word
        """What has not come of an average: spans [start, stop)."""
        arriving = self._arriving.get((ring, round))
        return [(0, self._elements[ring])] if arriving is None else arriving.missing

    def whole(self, ring: str, round: int) -> RingResult | None:  # noqa: A002 - our word
        """Return the average of a ring, once all of it is here."""
        arriving = self._arriving.get((ring, round))
        if arriving is None or not arriving.whole or arriving.end is None:
            return None
        return RingResult(ring, round, arriving.average, arriving.end.total_weight, arriving.end.counters)

    def commit(self, round: int) -> None:  # noqa: A002 - our word
        """Forget the averages up to `round`, and take no more of them."""
        self.committed = max(self.committed, round)
        for key in [key for key in self._arriving if key[1] <= self.committed]:
            del self._arriving[key]

    def _of(self, message: FollowedPiece | FollowedWhole, epoch: int) -> _Arriving | None:
        """What a message belongs to; None where it is too early, too late, or of an epoch that has ended."""
        if message.ring not in self._elements:
            raise InvalidInput(f"{message.ring!r} is none of the rings {sorted(self._elements)}")
        if not self.committed < message.round <= self.committed + self._most_rounds:
            return None
        key = message.ring, message.round
        arriving = self._arriving.get(key)
        if arriving is not None and message.round <= self._final and arriving.epoch <= epoch:
            return arriving
        if arriving is None or arriving.epoch < epoch:
            arriving = self._arriving[key] = _Arriving(epoch, torch.zeros(self._elements[message.ring]))
        return arriving if arriving.epoch == epoch else None
