"""The errors of ring_allreduce, as one tree.

    RavnestError                     the base of every error that is raised on purpose
    ├── InvalidInput                 what the caller gave cannot work: a shape, a name, a limit (exit code 2)
    ├── TransportError               a message could not be sent or read
    │   ├── PeerStalled              a peer takes nothing more: its bounded outgoing queue is full
    │   ├── UnknownPeer              a message for a name that was never given to connect()
    │   ├── MessageTooLarge          a message beyond the transport's limit, refused before it is sent
    │   └── InvalidMessage           bytes that are no valid message; endpoints count these and never raise them
    ├── ContributionRefused          a member's contribution is not finite, or disagrees in size or epoch
    ├── PeerLost                     a member died or left while others still needed it
    │   └── LeftOut                  this member itself was left out; it may join again
    └── DeadlinePassed               a wait ended without what it waited for

Each message is one line that names what was wrong, where, and what was expected.
"""

from ravnest_errors import InvalidInput, RavnestError

__all__ = [
    "ContributionRefused",
    "DeadlinePassed",
    "InvalidInput",
    "InvalidMessage",
    "LeftOut",
    "MessageTooLarge",
    "PeerLost",
    "PeerStalled",
    "RavnestError",
    "TransportError",
    "UnknownPeer",
]


class TransportError(RavnestError):
    """A message could not be sent or read."""


class PeerStalled(TransportError):
    """The bounded queue of messages for `peer` is full; nothing was queued. Try again after poll()."""

    def __init__(self, peer: str, lane: str, queued: int) -> None:
        self.peer = peer
        self.lane = lane
        super().__init__(f"peer {peer!r} takes no more {lane} messages: {queued} already wait for it")


class UnknownPeer(TransportError):
    """`peer` was never given to connect()."""

    def __init__(self, peer: str) -> None:
        self.peer = peer
        super().__init__(f"peer {peer!r} is unknown: give its address to connect() first")


class MessageTooLarge(TransportError):
    """A message of `n_bytes` would pass the limit; nothing was sent."""

    def __init__(self, n_bytes: int, limit_bytes: int) -> None:
        self.n_bytes = n_bytes
        self.limit_bytes = limit_bytes
        super().__init__(f"a message of {n_bytes} bytes is over the limit of {limit_bytes} bytes")


MOST_CHARACTERS = 300
"""Of the text of an InvalidMessage."""


class InvalidMessage(TransportError):
    """Bytes that are no valid message. `cause` is one of transport.stats.DropCause. Of what the sender has written the
    text has so much that a person can read it, and nothing that does anything to a terminal.

    `claimed` has the sender and the epoch that the message names, where its head could be read and its header is to be
    held against them.
    """

    def __init__(self, cause: str, message: str) -> None:
        self.cause = cause
        self.claimed: tuple[str, int] | None = None
        shown = message[:MOST_CHARACTERS]
        super().__init__("".join(one if one.isprintable() else "?" for one in shown))


class ContributionRefused(RavnestError):
    """What `member` gave to a ring cannot be averaged; `reason` says why. The ring's state is unchanged."""

    def __init__(self, member: str, ring: str, round: int, reason: str) -> None:  # noqa: A002 - our word
        self.member = member
        self.ring = ring
        self.round = round
        self.reason = reason
        super().__init__(f"round {round} of ring {ring!r}: refused what {member!r} gave: {reason}")


class PeerLost(RavnestError):
    """`member` died or left while the others still needed it."""

    def __init__(self, member: str, reason: str) -> None:
        self.member = member
        self.reason = reason
        super().__init__(f"member {member!r} is lost: {reason}")


class LeftOut(PeerLost):
    """The others go on without this `member` since `epoch`; nothing that it sends has an effect. It may join again."""

    def __init__(self, member: str, epoch: int, reason: str) -> None:
        super().__init__(member, f"left out since epoch {epoch}: {reason}")
        self.epoch = epoch


class DeadlinePassed(RavnestError):
    """`waited_for` did not happen within `deadline_s` seconds."""

    def __init__(self, waited_for: str, deadline_s: float) -> None:
        self.waited_for = waited_for
        self.deadline_s = deadline_s
        super().__init__(f"{waited_for} did not happen within {deadline_s:g} s")
