"""Memory segments that two processes of one machine share, so that the bodies of messages need not pass a socket.

A segment is anonymous memory (memfd, Linux only), sealed so that nobody can shrink it under its reader: a page that
vanished would kill the process that reads it. There are two ways to use segments:

* Slots. `SharedSlots` copies the bodies of a message into a free slot of the sender's segments, and `MappedSlots`, at
  the reader, gives views of it. The reader reports the slot as released when nobody holds a view any more.
* Lent memory. `LentMemory.empty` makes a tensor that lies in a segment of its own, so that sending it copies nothing.
  The reader (`BorrowedMemory`) maps the segment copy-on-write. A body then travels as a number and an offset, and the
  first time with the descriptor of its segment; `LentNumbers` is what one reader knows. Who asks for lent memory
  promises not to change what was sent before every reader is done with it: only a ring can know when that is.

In: bodies as memoryviews, and descriptors of segments. Out: slots, numbers and offsets, and views of the same bytes.
How descriptors and numbers travel is decided in channel.py.
"""

import bisect
import ctypes
import fcntl
import mmap
import os
import weakref
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ring_allreduce.errors import InvalidMessage
from ring_allreduce.transport.stats import DropCause

AVAILABLE = hasattr(os, "memfd_create")
"""True if this system has memory to share, which only Linux has."""

SEGMENT_BYTES = 16 << 20
"""Size of a segment whose slots are smaller than that. The system provides a page only once it is written to."""

LEAST_SLOT_BYTES = 64 << 10
LARGE_SLOT_BYTES = 8 << 20
"""Among the free slots of this size or more, only one keeps its pages."""

ALIGNED_BYTES = 64
MOST_SEGMENTS = 1 << 12
SLOTS_PER_SEGMENT = SEGMENT_BYTES // LEAST_SLOT_BYTES

LEAST_LENT_BYTES = 64 << 10
"""Smaller tensors are not lent but copied as they are sent: a descriptor and a mapping would cost more."""

MOST_LENT = 1 << 12
"""Segments that one reader may know at a time; bodies in further ones are copied."""

MOST_BORROWED_BYTES = 1 << 40
"""The most that a reader maps of one sender's lent segments, since address space ends somewhere."""

Array = ctypes.Array[ctypes.c_ubyte]


def aligned(n_bytes: int) -> int:
    """Return `n_bytes` rounded up to ALIGNED_BYTES: the offset of the body behind one of that size."""
    return -(-n_bytes // ALIGNED_BYTES) * ALIGNED_BYTES


def slot_bytes_for(n_bytes: int) -> int:
    """Return the size of the slot that holds `n_bytes`: a power of two, LEAST_SLOT_BYTES at least."""
    return max(LEAST_SLOT_BYTES, 1 << (n_bytes - 1).bit_length())


class SharedSlots:
    """The sender's side of slots. The slot that was freed last is used first, since it is in the processor's caches."""

    def __init__(self) -> None:
        self._segments: list[mmap.mmap] = []
        self._free: dict[int, list[int]] = {}  # size of a slot → free slots
        self._size: dict[int, int] = {}  # slot that is taken → its size

    @property
    def total_bytes(self) -> int:
        """Return the size of all segments, including pages that were never touched."""
        return sum(map(len, self._segments))

    def put(self, bodies: Sequence[memoryview]) -> tuple[int, int, int | None]:
        """Copy `bodies` into a free slot, each at the offset that aligned() gives.

        Returns the slot's number, its size in bytes, and the descriptor of its segment if that is a new one (else
        None), which the caller has to send and close. Raises OSError when the system has no memory to share.
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
        """Say whether put() would find a free slot without a new segment."""
        return bool(self._free.get(slot_bytes_for(sum(aligned(body.nbytes) for body in bodies))))

    def release(self, slots: Iterable[int]) -> None:
        """Free `slots`, which the reader holds no more. A slot that is not taken is ignored."""
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
        descriptor, memory = _new_segment(total)
        first = len(self._segments) * SLOTS_PER_SEGMENT
        self._segments.append(memory)
        self._free[slot_bytes] += reversed(range(first, first + total // slot_bytes))
        return descriptor


class MappedSlots:
    """The reader's side of the slots of one sender."""

    def __init__(self, most_bytes: int) -> None:
        """`most_bytes`: the most that a sender may put into one slot."""
        self._most_slot_bytes = slot_bytes_for(most_bytes)
        self._segments: list[tuple[mmap.mmap, int]] = []
        self._held: dict[int, weakref.ref[Array]] = {}
        self.released: deque[int] = deque()
        """Slots that nobody here holds any more and of which the sender has not been told. It grows in any thread
        that lets go of a tensor or collects garbage: take from it with popleft(), and never iterate over it."""

    def add_segment(self, descriptor: int, slot_bytes: int) -> None:
        """Map a new segment, divided into slots of `slot_bytes`.

        Raises InvalidMessage when it could shrink or has another size than it should.
        """
        proper = LEAST_SLOT_BYTES <= slot_bytes <= self._most_slot_bytes and slot_bytes & (slot_bytes - 1) == 0
        try:
            size = os.fstat(descriptor).st_size
            fits = size == max(SEGMENT_BYTES, slot_bytes) and len(self._segments) < MOST_SEGMENTS
            if proper and fits and _cannot_shrink(descriptor):
                self._segments.append((mmap.mmap(descriptor, size), slot_bytes))
                return
        except (OSError, ValueError):
            pass  # the descriptor is no memory, or the memory cannot be written to
        raise InvalidMessage(DropCause.MALFORMED, "a segment that no sender of ours makes")

    def is_large(self, slot: int) -> bool:
        """Say whether the slot is so large that its sender should hear soon that it is free."""
        return self._segments[slot // SLOTS_PER_SEGMENT][1] >= LARGE_SLOT_BYTES // 8

    def views(self, slot: int, sizes: Sequence[int]) -> list[memoryview]:
        """Views of the bodies in `slot`, whose `sizes` are in bytes.

        The slot is released when the last of the views, and of all tensors made of them, is gone. Raises
        InvalidMessage for a slot that does not exist or is still held, and for bodies that reach beyond its end.
        """
        segment, index = divmod(slot, SLOTS_PER_SEGMENT)
        if segment >= len(self._segments):
            raise InvalidMessage(DropCause.MALFORMED, f"no segment {segment} is shared")
        room, slot_bytes = self._segments[segment]
        if (index + 1) * slot_bytes > len(room) or sum(map(aligned, sizes)) > slot_bytes or slot in self._held:
            raise InvalidMessage(DropCause.WRONG_SIZE, f"{sum(sizes)} bytes in slot {index} of {slot_bytes} bytes")
        array = (ctypes.c_ubyte * slot_bytes).from_buffer(room, index * slot_bytes)
        held, released = self._held, self.released

        def release(_: object) -> None:  # runs in the thread that lets go of the array last
            held.pop(slot, None)
            released.append(slot)

        held[slot] = weakref.ref(array, release)
        whole, start, views = memoryview(array).cast("B"), 0, []
        for size in sizes:
            views.append(whole[start : start + size])
            start += aligned(size)
        return views


@dataclass(eq=False)
class LentSegment:
    """The memory of one lent tensor: its address, its size, and its descriptor while somebody holds the tensor."""

    start: int
    n_bytes: int
    descriptor: int
    gone: bool = False
    """Nobody in this process holds the tensor any more."""


class LentMemory:
    """The memory that one endpoint lends. It belongs to the endpoint's thread; tensors may be let go of in any
    thread.
    """

    def __init__(self, *, available: bool) -> None:
        """`available`: whether there may be peers that can read it; if not, nothing is lent."""
        self._available = available
        self._segments: list[LentSegment] = []  # by start
        self._let_go: deque[LentSegment] = deque()

    def empty(self, elements: int, dtype: torch.dtype) -> Tensor:
        """Return a vector (elements,) with undefined content: lent if it is large and the system allows it, else
        ordinary.
        """
        n_bytes = elements * dtype.itemsize
        array = self._array(n_bytes) if self._available and n_bytes >= LEAST_LENT_BYTES else None
        return torch.empty(elements, dtype=dtype) if array is None else torch.frombuffer(array, dtype=dtype)

    def find(self, body: memoryview) -> tuple[LentSegment, int] | None:
        """Return the lent segment in which `body` lies, and its offset there in bytes, or None if it lies in none."""
        self.reap()
        if not self._segments or body.readonly:
            return None
        start = ctypes.addressof(ctypes.c_ubyte.from_buffer(body))
        index = bisect.bisect_right(self._segments, start, key=_start) - 1
        if index < 0:
            return None
        segment = self._segments[index]
        offset = start - segment.start
        return (segment, offset) if offset + body.nbytes <= segment.n_bytes else None

    def reap(self) -> None:
        """Mark as gone, and forget, the segments whose tensors were let go of."""
        while self._let_go:
            segment = self._let_go.popleft()
            segment.gone = True
            self._segments.remove(segment)

    def _array(self, n_bytes: int) -> Array | None:
        self.reap()
        try:
            descriptor, memory = _new_segment(n_bytes)
        except (OSError, ValueError):
            return None  # for instance no descriptor is left: the tensor will be copied when it is sent
        array = (ctypes.c_ubyte * n_bytes).from_buffer(memory)
        segment = LentSegment(ctypes.addressof(array), n_bytes, descriptor)
        bisect.insort(self._segments, segment, key=_start)
        weakref.finalize(array, _let_go, segment, self._let_go).atexit = False
        return array


class LentNumbers:
    """The numbers under which the reader of one channel knows lent segments."""

    def __init__(self) -> None:
        self._numbers: dict[LentSegment, int] = {}

    def known(self, segment: LentSegment) -> int | None:
        """Return the number under which the reader has `segment`, or None if it does not have it."""
        return self._numbers.get(segment)

    def free(self) -> int | None:
        """Return a number that no segment has, or None when the reader knows MOST_LENT segments already."""
        if len(self._numbers) >= MOST_LENT:
            return None
        taken = set(self._numbers.values())
        return next(number for number in range(MOST_LENT) if number not in taken)

    def give(self, segment: LentSegment, number: int) -> None:
        """Note that `segment` was sent to the reader under `number`."""
        self._numbers[segment] = number

    def gone(self) -> dict[LentSegment, int]:
        """Return the segments that the reader still has and that nobody in this process holds, with their numbers."""
        return {segment: number for segment, number in self._numbers.items() if segment.gone}

    def forget(self, segments: Iterable[LentSegment]) -> None:
        """Note that the reader was told to let go of `segments`."""
        for segment in segments:
            del self._numbers[segment]


class BorrowedMemory:
    """The reader's side of lent memory: the segments of one sender, by number."""

    def __init__(self) -> None:
        self._segments: dict[int, mmap.mmap] = {}

    def add(self, number: int, descriptor: int) -> None:
        """Map a segment copy-on-write: what is written to it here stays in this process.

        Raises InvalidMessage when it could shrink, when all segments together would be too large, or when the number
        is not below MOST_LENT.
        """
        try:
            size = os.fstat(descriptor).st_size
            total = size + sum(map(len, self._segments.values()))
            if number < MOST_LENT and total <= MOST_BORROWED_BYTES and _cannot_shrink(descriptor):
                self._segments[number] = mmap.mmap(descriptor, size, access=mmap.ACCESS_COPY)
                return
        except (OSError, ValueError):
            pass  # the descriptor is no memory, or the memory cannot be mapped
        raise InvalidMessage(DropCause.MALFORMED, "memory that no sender of ours lends")

    def view(self, number: int, offset: int, n_bytes: int) -> memoryview:
        """Return `n_bytes` of a segment from `offset` on. Raises InvalidMessage for bytes that do not lie in it."""
        segment = self._segments.get(number)
        if segment is None or offset + n_bytes > len(segment):
            raise InvalidMessage(DropCause.WRONG_SIZE, f"{n_bytes} bytes at {offset} of lent segment {number}")
        return memoryview(segment)[offset : offset + n_bytes]

    def forget(self, number: int) -> None:
        """Drop a segment that is lent no more; views of it stay valid."""
        self._segments.pop(number, None)


def _new_segment(n_bytes: int) -> tuple[int, mmap.mmap]:
    """Return a sealed segment: its descriptor, which the caller closes, and its mapping."""
    descriptor = os.memfd_create("ring_allreduce", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, n_bytes)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        return descriptor, mmap.mmap(descriptor, n_bytes)
    except BaseException:
        os.close(descriptor)
        raise


def _cannot_shrink(descriptor: int) -> bool:
    return bool(fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK)


def _let_go(segment: LentSegment, let_go: deque[LentSegment]) -> None:
    """Nobody holds a lent tensor any more. This runs in any thread, before the memory is unmapped, so that what lies
    there next is not found while the segment is still in the list."""
    os.close(segment.descriptor)
    let_go.append(segment)


def _start(segment: LentSegment) -> int:
    return segment.start
