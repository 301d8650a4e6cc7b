"""Chunks of a round that this member has not called for yet: kept until it does, within bounds. Pure.

Only the call says what form that round has here, so they cannot be checked before. Others are one round ahead at most:
a commit needs everybody. Knows no ring machine and no vector.
"""

from collections import Counter
from collections.abc import Collection

from ring_allreduce.messages import Chunk, HandedOn
from ring_allreduce.transport.endpoint import Delivery

MAX_EARLY_BYTES = 1 << 30
"""So much of a round may be here before it is called for: the time between two members' calls is short."""

MESSAGE_BYTES = 1024
"""What a message takes besides its numbers."""

Key = tuple[str, int, str, int, int]
"""Sender, round, phase, block, start."""


class Early:
    """What came early, each chunk once, in the order in which it came."""

    def __init__(self, ring: str, max_bytes: int = MAX_EARLY_BYTES) -> None:
        self._ring = ring
        self._max_bytes = max_bytes
        self._bytes = 0
        self._kept: dict[Key, Delivery] = {}
        self.drops: Counter[str] = Counter()
        """What was not kept, by reason."""

    def keep(
        self, delivery: Delivery, message: Chunk | HandedOn, rounds: Collection[int], peers: Collection[str]
    ) -> None:
        """Keep it if it is of one of `rounds`, which others may have begun, and from one of `peers`."""
        phase, block = (message.phase, message.block) if isinstance(message, Chunk) else ("handed on", 0)
        key = delivery.sender, message.round, phase, block, message.start
        n_bytes = MESSAGE_BYTES + sum(tensor.nbytes for tensor in delivery.tensors)
        reason = self._why_not(message, rounds, delivery.sender in peers, key, n_bytes)
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

    def _why_not(
        self,
        message: Chunk | HandedOn,
        rounds: Collection[int],
        from_peer: bool,
        key: Key,
        n_bytes: int,
    ) -> str:
        if message.ring != self._ring:
            return "early, of another ring"
        if message.round not in rounds:
            return "of a round that nobody can have begun"
        if not from_peer:
            return "early, from no member"
        if key in self._kept:
            return "early, and there before"
        return "early, and too much" if self._bytes + n_bytes > self._max_bytes else ""
