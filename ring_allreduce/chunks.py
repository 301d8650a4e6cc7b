"""How a vector is divided: one block for each member of a ring, each block in chunks. Arithmetic on integers.

Every block has at least one chunk, even when it is empty: chunks also carry weights and counters.
"""

from dataclasses import dataclass

from ring_allreduce.errors import InvalidInput

CHUNK_SECONDS = 0.05
"""A chunk occupies its link for at most this long: what travels beside it waits no longer."""

LEAST_CHUNK_BYTES = 16 * 1024
MOST_CHUNK_BYTES = 1024 * 1024
"""Below the one, handling costs more than the bytes; above the other, nothing is gained."""


@dataclass(frozen=True)
class Layout:
    """`elements` numbers, divided among `members` blocks, each in chunks of at most `chunk_elements`."""

    elements: int
    members: int
    chunk_elements: int

    def __post_init__(self) -> None:
        if self.elements < 0 or self.members < 1 or self.chunk_elements < 1:
            raise InvalidInput(f"a layout needs elements >= 0, members >= 1, chunk_elements >= 1; got {self}")

    def block(self, index: int) -> tuple[int, int]:
        """Start and stop of a block; sizes differ by at most one element, the larger blocks first."""
        size, larger = divmod(self.elements, self.members)
        start = index * size + min(index, larger)
        return start, start + size + (index < larger)

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

    @property
    def chunk_count(self) -> int:
        """Chunks of all blocks together."""
        sizes = (stop - start for start, stop in map(self.block, range(self.members)))
        return sum(max(1, -(-size // self.chunk_elements)) for size in sizes)


def chunk_elements_for(bytes_per_s: float | None, element_bytes: int) -> int:
    """Elements of a chunk, for the slowest link of a ring (None: not known to be slow)."""
    rate = float("inf") if bytes_per_s is None else bytes_per_s
    if not rate > 0:
        raise InvalidInput(f"a link's bytes_per_s must be above 0, got {rate}")
    n_bytes = max(LEAST_CHUNK_BYTES, min(MOST_CHUNK_BYTES, rate * CHUNK_SECONDS))
    return int(n_bytes) // element_bytes
