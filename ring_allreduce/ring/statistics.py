"""What a ring cost one member, how fast the hops to it are, and how far a round is.

In: the chunks that pass, with their times. Out: rounds, seconds, bytes, and the rate of each hop. It is counted where
chunks pass, without any extra message.
"""

import math
from dataclasses import dataclass, field


@dataclass(frozen=True)
class RingProgress:
    """How far one ring is in one round, in chunks."""

    received: int
    expected: int
    sent: int
    waits_for: str | None
    """The member whose chunks are missing; None for nobody's."""


@dataclass
class RingStatistics:
    """One ring at one member, since its reducer was made. Bytes are those of chunks, without headers."""

    rounds: int = 0
    """Averages that became whole here."""
    seconds: float = 0.0
    """Sum over those rounds of the time from this member's contribution to the whole average."""
    bytes_sent: int = 0
    bytes_received: int = 0
    hops: dict[str, float] = field(default_factory=dict)
    """Bytes per second from each member that sends to this one, as last measured by `Burst`."""
    under_way_s: float = 0.0
    """Seconds while at least one round was under way, up to the last average; rounds that overlap count once."""

    _counted_until_s: float = field(default=-math.inf, repr=False, compare=False)

    def finish(self, begun_s: float, first_begun_s: float, now_s: float) -> None:
        """Count a round that was begun at `begun_s` and is whole; `first_begun_s` is the earliest of all under way."""
        self.rounds += 1
        self.seconds += now_s - begun_s
        self.under_way_s += now_s - max(first_begun_s, self._counted_until_s)
        self._counted_until_s = now_s

    def share_of(self, bytes_per_s: float) -> float:
        """Return the share of a link of `bytes_per_s` that sending took while rounds were under way; 0 before the
        first.
        """
        return self.bytes_sent / (self.under_way_s * bytes_per_s) if self.under_way_s else 0.0


def added(before: RingStatistics, after: RingStatistics) -> RingStatistics:
    """Return the sum of both; of each hop it has the newer rate."""
    return RingStatistics(
        before.rounds + after.rounds,
        before.seconds + after.seconds,
        before.bytes_sent + after.bytes_sent,
        before.bytes_received + after.bytes_received,
        {**before.hops, **after.hops},
        before.under_way_s + after.under_way_s,
    )


class Burst:
    """The rate of one hop in one round: its sender's own part leaves in one go, so it arrives as fast as the hop is."""

    def __init__(self) -> None:
        self._first_s = 0.0
        self._bytes = -1

    def add(self, n_bytes: int, now_s: float) -> float | None:
        """Return the bytes per second from the end of the first chunk to the end of this one; None after the first."""
        if self._bytes < 0:
            self._first_s, self._bytes = now_s, 0
            return None
        self._bytes += n_bytes
        elapsed_s = now_s - self._first_s
        return self._bytes / elapsed_s if elapsed_s > 0 else None
