"""Chunks of a round that this member has not called for yet: kept until it does, within bounds. Pure.

Only the call says what form that round has here, so they cannot be checked before. Others are one round ahead at most:
a commit needs everybody. They come in only while this member is inside average(), between the others' hearing of a
commit and its own. What is beyond the bounds is dropped, and its round tried again. Knows no ring machine, no vector.
"""

from collections import Counter
from collections.abc import Collection

from ring_allreduce.ring.messages import Chunk, HandedOn
from ring_allreduce.transport.endpoint import Delivery

LEAST_EARLY_BYTES = 256 << 20
"""So much of a round may always be here before it is called for: it may be larger than the round before."""

MESSAGE_BYTES = 1024
"""What a message takes besides its numbers."""

Key = tuple[str, int, str, int, int]
"""Sender, round, phase, block, start."""


def rounds_begun(current: int, *, newcomer: bool) -> range:
    """The rounds after `current` that others may have begun. A newcomer may not know yet of one commit more, in which
    it had no part."""
    return range(current + 1, current + (3 if newcomer else 2))


class Early:
    """What came early, each chunk once, in the order in which it came."""

    def __init__(self, ring: str, least_bytes: int = LEAST_EARLY_BYTES) -> None:
        self._ring = ring
        self._least_bytes = least_bytes
        self._bytes = 0
        self._kept: dict[Key, Delivery] = {}
        self.drops: Counter[str] = Counter()
        """What was not kept, by reason."""

    def keep(
        self,
        delivery: Delivery,
        message: Chunk | HandedOn,
        rounds: Collection[int],
        peers: Collection[str],
        round_bytes: int,
    ) -> None:
        """Keep it if it is of one of `rounds`, which others may have begun, and from one of `peers`.

        `round_bytes`: what all of them send in the round under way at most; no more is kept, or LEAST_EARLY_BYTES.
        """
        phase, block = (message.phase, message.block) if isinstance(message, Chunk) else ("handed on", 0)
        key = delivery.sender, message.round, phase, block, message.start
        n_bytes = MESSAGE_BYTES + sum(tensor.nbytes for tensor in delivery.tensors)
        reason = self._why_not(message, rounds, delivery.sender in peers, key)
        if not reason and self._bytes + n_bytes > max(round_bytes, self._least_bytes):
            reason = "early, and too much"
        if reason:
            self.drops[reason] += 1
            return
        self._bytes += n_bytes
        self._kept[key] = delivery

    def take(self) -> list[Delivery]:
        """All that is kept, which is forgotten here."""
        kept = list(self._kept.values())
        self._kept.clear()
        self._bytes = 0
        return kept

    def _why_not(self, message: Chunk | HandedOn, rounds: Collection[int], from_peer: bool, key: Key) -> str:
        if message.ring != self._ring:
            return "early, of another ring"
        if message.round not in rounds:
            return "of a round that nobody can have begun"
        if not from_peer:
            return "early, from no member"
        return "early, and there before" if key in self._kept else ""
