"""What callers and hosts of experts, and hosts among each other, say: typed messages with tensors. All fields bounded.

Who sends Forward or Backward waits for Answer or Refused with the same `call`. Copy carries the tensors that `names`
lists, in this order.
"""

from __future__ import annotations

from typing import Annotated, Literal

from ravnest.experts.grid import MOST_DIMENSIONS, MOST_SIDE, MOST_TERM, MOST_UPDATES, Expert
from ring_allreduce.transport import Codec, Count, Message, Name, Seconds, Text, at_most, between

Coordinates = Annotated[
    tuple[Annotated[int, between(0, MOST_SIDE - 1)], ...],
    at_most(MOST_DIMENSIONS),
]
MOST_TENSORS = 8192
Names = Annotated[tuple[Name, ...], at_most(MOST_TENSORS)]
Why = Literal["busy", "not here", "stale", "invalid", "not finite"]
"""Why a host refuses a request: too much waits; it does not host the expert; the gradient is too old; the tensors have
not the form that was agreed on; numbers are not finite."""


class Hello(Message, frozen=True, kw_only=True, tag="hello"):
    """A caller or a host has heard of this host, and would like to send it requests or copies."""


class Welcome(Message, frozen=True, kw_only=True, tag="welcome"):
    """This host knows whoever said Hello, and will answer."""


class Forward(Message, frozen=True, kw_only=True, tag="forward"):
    """Tensors: the input, (samples, …)."""

    call: Count
    expert: Coordinates
    training: bool


class Backward(Message, frozen=True, kw_only=True, tag="backward"):
    """Tensors: the input and the gradient of the output. updates: of the expert, at the forward."""

    call: Count
    expert: Coordinates
    updates: Count


class Answer(Message, frozen=True, kw_only=True, tag="answer"):
    """Tensors: the output, or the gradient of the input. updates: of the expert, when it computed this.

    staleness: of a gradient, how many updates the expert had had since its forward. host_s: how long the request was
    at the host.
    """

    call: Count
    updates: Count
    staleness: Count = 0
    host_s: Seconds = 0.0


class Refused(Message, frozen=True, kw_only=True, tag="refused"):
    call: Count
    why: Why
    said: Text = ""


class Copy(Message, frozen=True, kw_only=True, tag="copy"):
    """The state of an expert, for the stand-by host. take_over: it is to host the expert from now on."""

    expert: Coordinates
    term: Annotated[int, between(0, MOST_TERM)]
    updates: Annotated[int, between(0, MOST_UPDATES)]
    names: Names
    take_over: bool = False


class CopyKept(Message, frozen=True, kw_only=True, tag="copy_kept"):
    """Whether the stand-by has the copy: it may have no room for it. take_over: as in the Copy. taken_over: it hosts
    the expert now."""

    expert: Coordinates
    updates: Count
    kept: bool = True
    take_over: bool = False
    taken_over: bool = False


CODEC_KINDS = (Hello, Welcome, Forward, Backward, Answer, Refused, Copy, CopyKept)


def codec() -> Codec:
    """Encodes and decodes these messages, and no others."""
    return Codec(CODEC_KINDS)


__all__ = [
    "Answer",
    "Backward",
    "Copy",
    "CopyKept",
    "Expert",
    "Forward",
    "Hello",
    "Refused",
    "Welcome",
    "Why",
    "codec",
]
