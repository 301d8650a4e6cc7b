"""The messages by which a stage's state comes to the driver for a checkpoint: its files, piece by piece.

In: room for pieces, which the driver gives. Out: typed headers; a piece travels as a vector of bytes beside its header,
in the bulk lane. stage/state_sending.py says what the files hold; the other messages of a run are in messages.py.
"""

from typing import Final

from ring_allreduce.transport import Count, Message, Name

WINDOW: Final = 4
"""The pieces of one stage that may be on their way or waiting for the disk. The driver gives room for one more when one
is written, so a stage sends at most WINDOW · PIECE_BYTES for each round trip to the driver."""


# driver → stage


class StateWanted(Message, frozen=True, kw_only=True, tag="state_wanted"):
    """The driver has room for so many `pieces` more of the stage's state as of `round`."""

    round: Count
    pieces: Count


# stage → driver


class StatePiece(Message, frozen=True, kw_only=True, tag="state_piece"):
    """It carries the next bytes of a file of the checkpoint of `round`.

    A stage sends its files one after another. `offset` is where in the file the bytes belong: where the piece before
    it ended. `last` says that they are the file's last.
    """

    round: Count
    file: Name
    offset: Count
    last: bool


class StateSent(Message, frozen=True, kw_only=True, tag="state_sent"):
    """The stage has sent all of its state as of `round`, in so many `pieces`."""

    round: Count
    pieces: Count


STATE_KINDS: Final = (StateWanted, StatePiece, StateSent)
