"""How a vector is divided: one block for each member of a ring, each block in chunks. Arithmetic on integers.

Every block has at least one chunk, even when it is empty: chunks also carry weights and counters.
"""

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

from ring_allreduce.errors import InvalidInput

CHUNK_SECONDS = 0.05
"""A chunk occupies its link for at most this long: what travels beside it waits no longer."""

LEAST_CHUNK_BYTES = 32 * 1024
"""Below, a header (some 150 bytes) would be more than 0.5 % of the bytes."""

MOST_CHUNK_BYTES = 4 * 1024 * 1024
MOST_CHUNK_BYTES_UNKNOWN = 1024 * 1024
"""Of a link whose rate nobody knows: it might be a slow one."""

HANDLING_S = 2e-4
"""What a chunk costs beside its bytes, at both ends of a hop: a header, a look-up, a few instructions."""

UNKNOWN_LATENCY_S = 3e-4
UNKNOWN_BYTES_PER_S = 5e8
"""What a hop costs where nothing was measured: between processes of one machine, handling included."""

SHARES_SUM_WITHIN = 1e-6


@dataclass(frozen=True)
class Layout:
    """`elements` numbers, divided among `members` blocks, each in chunks of at most `chunk_elements`.

    `shares`: the part of the vector in each block, any of them zero, sum 1; None: equal blocks.
    """

    elements: int
    members: int
    chunk_elements: int
    shares: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if self.elements < 0 or self.members < 1 or self.chunk_elements < 1:
            raise InvalidInput(f"a layout needs elements >= 0, members >= 1, chunk_elements >= 1; got {self}")
        if self.shares is not None:
            usable = len(self.shares) == self.members and all(share >= 0 for share in self.shares)
            if not usable or not abs(sum(self.shares) - 1) <= SHARES_SUM_WITHIN:
                raise InvalidInput(
                    f"shares are one number >= 0 for each of {self.members} members, sum 1: {self.shares}"
                )

    @cached_property
    def edges(self) -> tuple[int, ...]:
        """Where the blocks begin, and `elements`. Equal blocks differ by at most one element, the larger ones first."""
        if self.shares is None:
            size, larger = divmod(self.elements, self.members)
            return tuple(index * size + min(index, larger) for index in range(self.members + 1))
        sums = [math.fsum(self.shares[:index]) for index in range(self.members)]
        return (*(min(self.elements, round(self.elements * before)) for before in sums), self.elements)

    def block(self, index: int) -> tuple[int, int]:
        """Start and stop of a block."""
        return self.edges[index], self.edges[index + 1]

    def chunks(self, index: int) -> list[tuple[int, int]]:
        """Start and stop of each chunk of a block, in order; one empty chunk for an empty block."""
        start, stop = self.block(index)
        edges = range(start, stop, self.chunk_elements)
        return [(edge, min(edge + self.chunk_elements, stop)) for edge in edges] or [(start, stop)]

    def has_chunk(self, index: int, start: int, stop: int) -> bool:
        """Whether (start, stop) is a chunk of that block. False for any integers that are none."""
        if not 0 <= index < self.members:
            return False
        first, last = self.edges[index], self.edges[index + 1]
        if first == last:
            return start == stop == first
        on_grid = first <= start < last and (start - first) % self.chunk_elements == 0
        return on_grid and stop == min(start + self.chunk_elements, last)

    def chunk_count(self, index: int | None = None) -> int:
        """Chunks of one block, or of all together."""
        if index is None:
            return sum(map(self.chunk_count, range(self.members)))
        start, stop = self.block(index)
        return max(1, -(-(stop - start) // self.chunk_elements))


@lru_cache(maxsize=256)
def layout_of(elements: int, members: int, chunk_elements: int, shares: tuple[float, ...] | None = None) -> Layout:
    """The same layout for every round of a ring. Raises InvalidInput as Layout does."""
    return Layout(elements, members, chunk_elements, shares)


def chunk_elements_for(bytes_per_s: float | None, element_bytes: int, vector_bytes: int | None = None) -> int:
    """Elements of a chunk, for the slowest link of a ring (None: not known) and the whole vector (None: not known).

    A hop carries S bytes in chunks of c in S/rate + S/c · HANDLING_S, and the ring ends c/rate after its last link was
    busy: the sum is least at c = √(S · HANDLING_S · rate). Within LEAST and MOST, and never above CHUNK_SECONDS of the
    link. Raises InvalidInput for a rate that is not above 0.
    """
    rate = UNKNOWN_BYTES_PER_S if bytes_per_s is None else bytes_per_s
    if not rate > 0:
        raise InvalidInput(f"a link's bytes_per_s must be above 0, got {rate}")
    most = min(MOST_CHUNK_BYTES_UNKNOWN if bytes_per_s is None else MOST_CHUNK_BYTES, rate * CHUNK_SECONDS)
    if vector_bytes is not None:
        most = min(most, math.sqrt(vector_bytes * HANDLING_S * rate))
    return int(max(LEAST_CHUNK_BYTES, most)) // element_bytes


def direct_is_faster(
    vector_bytes: int, members: int, latency_s: float | None = None, bytes_per_s: float | None = None
) -> bool:
    """Whether everyone sends its part to everyone, for the slowest link of a ring (None: not measured).

        ring      2 (n − 1) · (S / n / rate + latency)        2 (n − 1) hops, one after another for small vectors
        direct    (n − 1) · S / rate + latency                one hop

    For two members the bytes are the same, and the hops fewer: always. Raises InvalidInput for impossible numbers.
    """
    latency = UNKNOWN_LATENCY_S if latency_s is None else latency_s
    rate = UNKNOWN_BYTES_PER_S if bytes_per_s is None else bytes_per_s
    if members < 1 or vector_bytes < 0 or not latency >= 0 or not rate > 0:
        raise InvalidInput(f"no ring has {members} members, {vector_bytes} bytes, {latency} s, {rate} bytes/s")
    if members <= 2:
        return True
    once = vector_bytes / rate
    ring_s = 2 * (members - 1) * (once / members + latency)
    return (members - 1) * once + latency < ring_s
