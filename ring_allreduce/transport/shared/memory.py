"""Memory that two processes of one machine share: a message's bodies are written into it once, and read where they lie.

The sender owns segments of anonymous memory, each divided into slots of one size; a message takes one slot, and the
reader says when nobody holds it any more. Segments are sealed, so that nobody can shrink one under its reader; they
stay until the line is closed. Which slot, and when it is free, is decided here; how a segment gets to the other
process, line.py.
"""

import ctypes
import fcntl
import mmap
import os
import weakref
from collections import deque
from collections.abc import Iterable, Sequence

from ring_allreduce.errors import InvalidMessage
from ring_allreduce.transport.stats import DropCause

SEGMENT_BYTES = 16 << 20
"""Of a segment with slots smaller than that. Pages are the system's only once they are written to."""

LEAST_SLOT_BYTES = 64 << 10
LARGE_SLOT_BYTES = 8 << 20
"""Of slots so large only one that is free keeps its pages."""

ALIGNED_BYTES = 64
MOST_SEGMENTS = 1 << 12
SLOTS_PER_SEGMENT = SEGMENT_BYTES // LEAST_SLOT_BYTES

AVAILABLE = hasattr(os, "memfd_create")
"""Linux only."""


def aligned(n_bytes: int) -> int:
    """Where a body after `n_bytes` others begins."""
    return -(-n_bytes // ALIGNED_BYTES) * ALIGNED_BYTES


def slot_bytes_for(n_bytes: int) -> int:
    """The size of the slot that holds `n_bytes`: a power of two."""
    return max(LEAST_SLOT_BYTES, 1 << (n_bytes - 1).bit_length())


class SharedSlots:
    """The sender's side: slots that are free, taken, and free again. The last one freed is used first: it is warm."""

    def __init__(self) -> None:
        self._segments: list[mmap.mmap] = []
        self._free: dict[int, list[int]] = {}
        self._size: dict[int, int] = {}
        """Of each slot that is taken."""

    @property
    def total_bytes(self) -> int:
        """Of all segments, touched or not."""
        return sum(map(len, self._segments))

    def put(self, bodies: Sequence[memoryview]) -> tuple[int, int, int | None]:
        """Copy `bodies` into a free slot, each where aligned() says.

        Returns the slot, its size, and the descriptor of a new segment (None: of a known one), which the caller sends
        and closes. Raises OSError when the system has no memory to share.
        """
        n_bytes = sum(aligned(body.nbytes) for body in bodies)
        size = slot_bytes_for(n_bytes)
        free, new = self._free.setdefault(size, []), None
        if not free:
            new = self._add_segment(size)
        slot = free.pop()
        self._size[slot] = size
        segment, index = divmod(slot, SLOTS_PER_SEGMENT)
        room, start = memoryview(self._segments[segment]), index * size
        for body in bodies:
            room[start : start + body.nbytes] = body.cast("B")
            start += aligned(body.nbytes)
        return slot, size, new

    def has_room(self, bodies: Sequence[memoryview]) -> bool:
        """Whether put() would find a free slot."""
        return bool(self._free.get(slot_bytes_for(sum(aligned(body.nbytes) for body in bodies))))

    def release(self, slots: Iterable[int]) -> None:
        """The reader holds them no more; a slot that is not taken is left alone."""
        for slot in slots:
            size = self._size.pop(slot, None)
            if size is None:
                continue
            if size >= LARGE_SLOT_BYTES and self._free[size]:
                segment, index = divmod(slot, SLOTS_PER_SEGMENT)
                self._segments[segment].madvise(mmap.MADV_REMOVE, index * size, size)
            self._free[size].append(slot)

    def _add_segment(self, slot_bytes: int) -> int:
        total = max(SEGMENT_BYTES, slot_bytes)
        descriptor = os.memfd_create("ring_allreduce", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(descriptor, total)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            first = len(self._segments) * SLOTS_PER_SEGMENT
            self._segments.append(mmap.mmap(descriptor, total))
        except BaseException:
            os.close(descriptor)
            raise
        self._free[slot_bytes] += reversed(range(first, first + total // slot_bytes))
        return descriptor


class MappedSlots:
    """The reader's side of the slots of one sender."""

    def __init__(self, most_bytes: int) -> None:
        """`most_bytes`: what a slot may hold at most."""
        self._most_slot_bytes = slot_bytes_for(most_bytes)
        self._segments: list[tuple[mmap.mmap, int]] = []
        self._held: dict[int, weakref.ref[ctypes.Array[ctypes.c_ubyte]]] = {}
        self.released: deque[int] = deque()
        """Slots that nobody here holds any more, since the one who tells the sender last looked. It grows in whatever
        thread lets go of a tensor or collects garbage: take from it with popleft(), and never iterate over it."""

    def add_segment(self, descriptor: int, slot_bytes: int) -> None:
        """Map a new segment. Raises InvalidMessage for one that could shrink, or has another size than it should."""
        proper = LEAST_SLOT_BYTES <= slot_bytes <= self._most_slot_bytes and slot_bytes & (slot_bytes - 1) == 0
        try:
            size = os.fstat(descriptor).st_size
            sealed = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK
            if proper and sealed and size == max(SEGMENT_BYTES, slot_bytes) and len(self._segments) < MOST_SEGMENTS:
                self._segments.append((mmap.mmap(descriptor, size), slot_bytes))
                return
        except (OSError, ValueError):
            pass  # no memory at all, or not to be written to
        raise InvalidMessage(DropCause.MALFORMED, "a segment that no sender of ours makes")

    def is_large(self, slot: int) -> bool:
        """Whether the sender should hear soon that this slot is free."""
        return self._segments[slot // SLOTS_PER_SEGMENT][1] >= LARGE_SLOT_BYTES // 8

    def views(self, slot: int, sizes: Sequence[int]) -> list[memoryview]:
        """Bodies of `sizes` in `slot`, which is released when the last of them, and all made of them, are gone.

        Raises InvalidMessage for a slot that is not there or still held, or bodies beyond its end.
        """
        segment, index = divmod(slot, SLOTS_PER_SEGMENT)
        if segment >= len(self._segments):
            raise InvalidMessage(DropCause.MALFORMED, f"no segment {segment} is shared")
        room, slot_bytes = self._segments[segment]
        if (index + 1) * slot_bytes > len(room) or sum(map(aligned, sizes)) > slot_bytes or slot in self._held:
            raise InvalidMessage(DropCause.WRONG_SIZE, f"{sum(sizes)} bytes in slot {index} of {slot_bytes} bytes")
        array = (ctypes.c_ubyte * slot_bytes).from_buffer(room, index * slot_bytes)
        held, released = self._held, self.released

        def release(_: object) -> None:  # in whatever thread lets go of it last
            held.pop(slot, None)
            released.append(slot)

        held[slot] = weakref.ref(array, release)
        whole, start, views = memoryview(array).cast("B"), 0, []
        for size in sizes:
            views.append(whole[start : start + size])
            start += aligned(size)
        return views
