"""What an endpoint counts: traffic per peer and lane, and messages dropped by cause."""

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from enum import Enum, StrEnum


class Lane(Enum):
    """Two lanes on separate connections, so that averaging never stalls the pipeline."""

    PIPELINE = "pipeline"
    BULK = "bulk"

    __hash__ = object.__hash__  # Enum's own is a call of Python, for each of the many look-ups by lane


class DropCause(StrEnum):
    """Why an arrived message had no effect."""

    WRONG_TOKEN = "wrong_token"  # a message not of this run, or a whole connection (or with a key not allowed)
    MALFORMED = "malformed"  # a head or header that does not parse, or fields of wrong types
    UNKNOWN_KIND = "unknown_kind"  # a kind that nobody registered
    UNKNOWN_SENDER = "unknown_sender"  # a name that was never given to connect()
    FALSE_SENDER = "false_sender"  # a member's name, from a connection that another member's key opened
    WRONG_SIZE = "wrong_size"  # frame count or byte counts that do not match the stated tensors
    TOO_LARGE = "too_large"  # over TransportLimits.max_message_bytes
    OLDER_EPOCH = "older_epoch"  # of an epoch before the endpoint's


@dataclass
class Traffic:
    """Messages and bytes (heads and bodies) of one direction of one lane with one peer."""

    messages: int = 0
    n_bytes: int = 0

    def add(self, n_bytes: int) -> None:
        self.messages += 1
        self.n_bytes += n_bytes


@dataclass
class Lateness:
    """How much later than it should have been what was emulated was handed on."""

    messages: int = 0
    late_s: float = 0.0

    def saw(self, late_s: float) -> None:
        self.messages += 1
        self.late_s += late_s


def _traffic() -> defaultdict[tuple[str, Lane], Traffic]:
    return defaultdict(Traffic)


@dataclass
class TransportStats:
    """Counts since the endpoint was made: `sent` what send() took, `received` what was delivered."""

    sent: defaultdict[tuple[str, Lane], Traffic] = field(default_factory=_traffic)
    received: defaultdict[tuple[str, Lane], Traffic] = field(default_factory=_traffic)
    dropped: Counter[DropCause] = field(default_factory=Counter)
    lateness: Lateness = field(default_factory=Lateness)
    """Of emulated links."""
