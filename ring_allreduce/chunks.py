"""How a vector is divided: one block for each member of a ring, each block in chunks. Arithmetic on integers.

Every block has at least one chunk, even when it is empty: chunks also carry weights and counters.
"""

import math
from dataclasses import dataclass
from functools import cached_property

from ring_allreduce.errors import InvalidInput

CHUNK_SECONDS = 0.05
"""A chunk occupies its link for at most this long: what travels beside it waits no longer."""

LEAST_CHUNK_BYTES = 16 * 1024
MOST_CHUNK_BYTES = 1024 * 1024
"""Below the one, handling costs more than the bytes; above the other, nothing is gained."""


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
        first, last = self.block(index)
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


def chunk_elements_for(bytes_per_s: float | None, element_bytes: int) -> int:
    """Elements of a chunk, for the slowest link of a ring (None: not known to be slow)."""
    rate = float("inf") if bytes_per_s is None else bytes_per_s
    if not rate > 0:
        raise InvalidInput(f"a link's bytes_per_s must be above 0, got {rate}")
    n_bytes = max(LEAST_CHUNK_BYTES, min(MOST_CHUNK_BYTES, rate * CHUNK_SECONDS))
    return int(n_bytes) // element_bytes
