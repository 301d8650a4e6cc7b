"""What travels on the socket of a shared line, as bytes: the head of a message, which says where its bodies lie.

    slot u32, place u64, frames inline u16, frames u16, gone u16 ‖ u32 of each number gone ‖ u64 of each frame's size

`slot`: NOT_SHARED when all frames lie inline; LENT | number when the only other one lies in lent memory, `place` bytes
into its segment; else the slot that holds the others, `place` bytes large. `gone`: numbers of lent segments that the
reader may forget.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from ring_allreduce.errors import InvalidMessage
from ring_allreduce.transport.frames import COPY_BELOW_BYTES
from ring_allreduce.transport.stats import DropCause, Lane

MAGIC = b"ravnest:shared:2"

UNTAKEN = {Lane.PIPELINE: 16, Lane.BULK: 8}
"""Messages that may wait for the reader; beyond, the sender is held back, and one that does not mind is hung up on."""

INLINE_BYTES = COPY_BELOW_BYTES
"""Messages of so many bytes travel in the datagram: their bodies would be copied on arrival anyway."""

DATAGRAM_BYTES = 128 << 10
RETURNED = struct.Struct("<I")
DESCRIPTOR = struct.Struct("i")

NOT_SHARED = (1 << 32) - 1
LENT = 1 << 31

_FIXED = struct.Struct("<IQHHH")


@dataclass(frozen=True, slots=True)
class Head:
    """See above."""

    slot: int
    place: int
    inline: int
    gone: Sequence[int]
    sizes: Sequence[int]

    def packed(self) -> bytes:
        """As it travels."""
        fixed = _FIXED.pack(self.slot, self.place, self.inline, len(self.sizes), len(self.gone))
        return fixed + struct.pack(f"<{len(self.gone)}I{len(self.sizes)}Q", *self.gone, *self.sizes)

    @classmethod
    def unpacked(cls, data: memoryview) -> tuple["Head", int]:
        """The head in `data`, and where it ends. Raises InvalidMessage when there is none."""
        if data.nbytes >= _FIXED.size:
            slot, place, inline, frames, gone = _FIXED.unpack_from(data)
            numbers = struct.Struct(f"<{gone}I{frames}Q")
            end = _FIXED.size + numbers.size
            if inline <= frames and end <= data.nbytes:
                found = numbers.unpack_from(data, _FIXED.size)
                return cls(slot, place, inline, found[:gone], found[gone:]), end
        raise InvalidMessage(DropCause.MALFORMED, "no message of a shared line")
