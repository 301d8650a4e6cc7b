"""The grid of a divided vector: one block for each member of a ring, each block in chunks. Arithmetic on integers.

Every block has at least one chunk, even when it is empty: chunks also carry weights and counters. `chunk_elements_for`
says how long a chunk should be for the links of a ring.
"""

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

from ravnest_errors import InvalidInput

CHUNK_SECONDS = 0.05
"""A chunk occupies its link for at most so long: what travels beside it waits no longer (design §8)."""

LEAST_CHUNK_BYTES = 32 * 1024
"""In a shorter chunk a header (some 150 bytes) would be more than 0.5 % of the bytes."""

MOST_CHUNK_BYTES = 4 * 1024 * 1024
MOST_CHUNK_BYTES_UNKNOWN = 1024 * 1024
"""The longest chunk on a link whose rate nobody knows: it might be a slow one."""

HANDLING_S = 2e-4
"""The time a chunk takes beside its bytes, at both ends of a hop: a header, a look-up, a few instructions."""

CHUNK_GRAIN = 256
"""A chunk holds a multiple of so many elements: numbers that share one scale on the wire do not part at its end."""

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
        """Return where the blocks begin, and `elements`. Equal blocks differ by at most one element, the larger ones
        first.
        """
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
        """Say whether (start, stop) is a chunk of that block; it is False for any integers that are not."""
        if not 0 <= index < self.members:
            return False
        first, last = self.edges[index], self.edges[index + 1]
        if first == last:
            return start == stop == first
        on_grid = first <= start < last and (start - first) % self.chunk_elements == 0
        return on_grid and stop == min(start + self.chunk_elements, last)

    def chunk_count(self, index: int | None = None) -> int:
        """Return the number of chunks of one block, or of all together."""
        if index is None:
            return sum(map(self.chunk_count, range(self.members)))
        start, stop = self.block(index)
        return max(1, -(-(stop - start) // self.chunk_elements))


@lru_cache(maxsize=256)
def layout_of(elements: int, members: int, chunk_elements: int, shares: tuple[float, ...] | None = None) -> Layout:
    """Return the same layout for every round of a ring. Raises InvalidInput as Layout does."""
    return Layout(elements, members, chunk_elements, shares)


def chunk_elements_for(bytes_per_s: float | None, element_bytes: float, vector_bytes: int | None = None) -> int:
    """Return the number of elements of a chunk, each of `element_bytes` bytes: 0.5 where two of them share one.

    `bytes_per_s` is the rate of the slowest hop of the ring and `vector_bytes` the size of the vector; each is None if
    it is not known.
    """
    if bytes_per_s is not None and not bytes_per_s > 0:
        raise InvalidInput(f"a link's bytes_per_s must be above 0, got {bytes_per_s}")
    most = float(MOST_CHUNK_BYTES_UNKNOWN)
    if bytes_per_s is not None:
        most = min(MOST_CHUNK_BYTES, bytes_per_s * CHUNK_SECONDS)
        if vector_bytes is not None:
            most = min(most, math.sqrt(vector_bytes * HANDLING_S * bytes_per_s))
    elements = int(int(max(LEAST_CHUNK_BYTES, most)) / element_bytes)
    return elements // CHUNK_GRAIN * CHUNK_GRAIN
