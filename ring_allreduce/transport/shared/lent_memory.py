"""Memory of this process that peers on this machine read where it lies: to send it, nothing is copied.

`LentMemory` is the owner's side, `LentNumbers` what one line's reader knows of it, `BorrowedMemory` the reader's side.
A body that lies in lent memory travels as a number and an offset, and the first time with the descriptor of its
segment. Whoever asks for such memory promises not to change what it has sent before every reader is done with it:
only a ring can know when that is (flight.py).
"""

import bisect
import ctypes
import fcntl
import mmap
import os
import weakref
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from ring_allreduce.errors import InvalidMessage
from ring_allreduce.transport.stats import DropCause

LEAST_LENT_BYTES = 64 << 10
"""Smaller tensors are copied as they are sent: a descriptor and a mapping would cost more."""

MOST_LENT = 1 << 12
"""Segments that one line knows at a time; bodies in more are copied."""

MOST_BORROWED_BYTES = 1 << 40
"""What a reader maps of one line's segments: no peer of ours lends more, and address space ends somewhere."""

Array = ctypes.Array[ctypes.c_ubyte]


@dataclass(eq=False)
class LentSegment:
    """One tensor's memory."""

    start: int
    n_bytes: int
    descriptor: int
    gone: bool = False
    """Nobody here holds the tensor any more."""


class LentMemory:
    """What one endpoint lends. Belongs to its thread; tensors may be let go of in any."""

    def __init__(self, *, available: bool) -> None:
        """`available`: whether there may be peers that can read it."""
        self._available = available
        self._segments: list[LentSegment] = []  # by start
        self._let_go: deque[LentSegment] = deque()

    def empty(self, elements: int, dtype: torch.dtype) -> Tensor:
        """A vector (elements,) of any content: lent while it lives, or ordinary where the system lends nothing."""
        n_bytes = elements * dtype.itemsize
        array = self._array(n_bytes) if self._available and n_bytes >= LEAST_LENT_BYTES else None
        return torch.empty(elements, dtype=dtype) if array is None else torch.frombuffer(array, dtype=dtype)

    def find(self, body: memoryview) -> tuple[LentSegment, int] | None:
        """The segment in which `body` lies, and its offset there; None: in none of them."""
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
        """Notice what was let go of."""
        while self._let_go:
            segment = self._let_go.popleft()
            segment.gone = True
            self._segments.remove(segment)

    def _array(self, n_bytes: int) -> Array | None:
        self.reap()
        try:
            descriptor = os.memfd_create("ring_allreduce", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        except OSError:
            return None  # no descriptor is left: it is copied as it is sent
        try:
            os.ftruncate(descriptor, n_bytes)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            array = (ctypes.c_ubyte * n_bytes).from_buffer(mmap.mmap(descriptor, n_bytes))
        except (OSError, ValueError):
            os.close(descriptor)
            return None
        segment = LentSegment(ctypes.addressof(array), n_bytes, descriptor)
        bisect.insort(self._segments, segment, key=_start)
        weakref.finalize(array, _let_go, segment, self._let_go).atexit = False
        return array


class LentNumbers:
    """By which numbers the reader of one line knows segments."""

    def __init__(self) -> None:
        self._numbers: dict[LentSegment, int] = {}

    def known(self, segment: LentSegment) -> int | None:
        """The number under which the reader has it, if it does."""
        return self._numbers.get(segment)

    def free(self) -> int | None:
        """A number that no segment has; None when there are too many."""
        if len(self._numbers) >= MOST_LENT:
            return None
        taken = set(self._numbers.values())
        return next(number for number in range(MOST_LENT) if number not in taken)

    def give(self, segment: LentSegment, number: int) -> None:
        """The reader was sent `segment`."""
        self._numbers[segment] = number

    def gone(self) -> dict[LentSegment, int]:
        """Segments that the reader still has, and nobody here, with their numbers."""
        return {segment: number for segment, number in self._numbers.items() if segment.gone}

    def forget(self, segments: Iterable[LentSegment]) -> None:
        """The reader was told to let go of them."""
        for segment in segments:
            del self._numbers[segment]


class BorrowedMemory:
    """The reader's side: the segments of one sender."""

    def __init__(self) -> None:
        self._segments: dict[int, mmap.mmap] = {}

    def add(self, number: int, descriptor: int) -> None:
        """Map a segment: what is written to it here stays here.

        Raises InvalidMessage for one that could shrink, is too large beside the others, or has a number that none has.
        """
        try:
            size = os.fstat(descriptor).st_size
            sealed = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK
            total = size + sum(map(len, self._segments.values()))
            if sealed and number < MOST_LENT and total <= MOST_BORROWED_BYTES:
                self._segments[number] = mmap.mmap(descriptor, size, access=mmap.ACCESS_COPY)
                return
        except (OSError, ValueError):
            pass  # no memory at all, or not to be written to
        raise InvalidMessage(DropCause.MALFORMED, "memory that no sender of ours lends")

    def view(self, number: int, offset: int, n_bytes: int) -> memoryview:
        """`n_bytes` from `offset` on, to be read only. Raises InvalidMessage for what does not lie there."""
        segment = self._segments.get(number)
        if segment is None or offset + n_bytes > len(segment):
            raise InvalidMessage(DropCause.WRONG_SIZE, f"{n_bytes} bytes at {offset} of lent segment {number}")
        return memoryview(segment)[offset : offset + n_bytes]

    def forget(self, number: int) -> None:
        """Nobody lends it any more; who still reads it goes on having it."""
        self._segments.pop(number, None)


def _let_go(segment: LentSegment, let_go: deque[LentSegment]) -> None:
    """Nobody holds a tensor any more, in whatever thread. Before its memory is unmapped: what lies there next is not
    found while the segment is still in the list.
    """
    os.close(segment.descriptor)
    let_go.append(segment)


def _start(segment: LentSegment) -> int:
    return segment.start
