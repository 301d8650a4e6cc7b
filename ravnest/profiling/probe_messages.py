"""What probes say to each other over the transport."""

from ring_allreduce.transport import Codec, Message


class Ping(Message, frozen=True, kw_only=True, tag="ping"):
    """Answer at once."""

    number: int


class Pong(Message, frozen=True, kw_only=True, tag="pong"):
    """The answer to the ping of this number, and what the answering machine's clock shows (seconds since 1970)."""

    number: int
    wall_s: float


class Block(Message, frozen=True, kw_only=True, tag="block"):
    """A piece of a transfer, with one tensor of bytes."""

    transfer: int
    number: int


class Arrived(Message, frozen=True, kw_only=True, tag="arrived"):
    """The receiver has this block."""

    transfer: int
    number: int


def codec() -> Codec:
    return Codec((Ping, Pong, Block, Arrived))
