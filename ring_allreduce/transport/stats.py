"""The lanes, and what an endpoint counts: traffic for each peer and lane, and dropped messages by cause."""

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from enum import Enum, StrEnum


class Lane(Enum):
    """The two lanes. They use separate connections, so that averaging never stalls the pipeline."""

    PIPELINE = "pipeline"
    BULK = "bulk"

    __hash__ = object.__hash__  # Enum's own is a Python function, which each of many look-ups by lane would call


class DropCause(StrEnum):
    """Why a message that arrived had no effect."""

    WRONG_TOKEN = "wrong_token"  # a message or connection without the run's token, or with a key that is not allowed
    MALFORMED = "malformed"  # a head or header that cannot be parsed, or has fields of wrong types
    UNKNOWN_KIND = "unknown_kind"  # a kind that nobody registered
    UNKNOWN_SENDER = "unknown_sender"  # a name that was never given to connect()
    FALSE_SENDER = "false_sender"  # a member's name, from a connection that another member's key opened
    WRONG_SIZE = "wrong_size"  # other numbers of frames or bytes than the stated tensors have
    TOO_LARGE = "too_large"  # more than TransportLimits.max_message_bytes
    OLDER_EPOCH = "older_epoch"  # of an epoch before that of the endpoint


@dataclass
class Traffic:
    """Messages and bytes (heads and bodies) in one direction of one lane with one peer."""

    messages: int = 0
    n_bytes: int = 0

    def add(self, n_bytes: int) -> None:
        """Count one message of `n_bytes`."""
        self.messages += 1
        self.n_bytes += n_bytes


@dataclass
class Lateness:
    """The time by which messages were handed on later than the emulated links say, in total."""

    messages: int = 0
    late_s: float = 0.0

    def saw(self, late_s: float) -> None:
        """Count one message that was `late_s` late."""
        self.messages += 1
        self.late_s += late_s


def _traffic() -> defaultdict[tuple[str, Lane], Traffic]:
    return defaultdict(Traffic)


@dataclass
class TransportStats:
    """Counts since the endpoint was made: `sent` is what send() took, `received` what was delivered."""

    sent: defaultdict[tuple[str, Lane], Traffic] = field(default_factory=_traffic)
    received: defaultdict[tuple[str, Lane], Traffic] = field(default_factory=_traffic)
    dropped: Counter[DropCause] = field(default_factory=Counter)
    lateness: Lateness = field(default_factory=Lateness)
    """The lateness of emulated links."""
