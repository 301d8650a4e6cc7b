"""The lanes, and what an endpoint counts: traffic for each peer and lane, dropped messages by cause, and strangers."""

import threading
from collections import Counter, defaultdict
from collections.abc import Mapping
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


MOST_ADDRESSES = 256
"""The number of addresses whose strangers are counted one by one; those of further ones are counted together."""

OTHER_ADDRESSES = "other addresses"

TELL_EVERY_S = 10.0
"""Strangers are told of at most this often."""


class Strangers:
    """How many connections of each address were refused or turned away."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._told: Counter[str] = Counter()
        self._tell_at_s = float("-inf")

    def came(self, address: str) -> None:
        """Count one more from `address`, in any thread."""
        with self._lock:
            known = address in self._counts or len(self._counts) < MOST_ADDRESSES
            self._counts[address if known else OTHER_ADDRESSES] += 1

    @property
    def counts(self) -> Mapping[str, int]:
        """Return how many there were, by address."""
        with self._lock:
            return dict(self._counts)

    def news(self, now_s: float) -> dict[str, int]:
        """Return the counts so far of the addresses that have more since the last news; at most every TELL_EVERY_S."""
        if now_s < self._tell_at_s:
            return {}
        counts = self.counts
        more = {address: count for address, count in counts.items() if count != self._told[address]}
        if more:
            self._tell_at_s = now_s + TELL_EVERY_S
            self._told = Counter(counts)
        return more


def strangers_in_words(address: str, count: int) -> str:
    """Say how many strangers of an address there were."""
    connections = "connection" if count == 1 else "connections"
    return f"refused {count} {connections} from {address} so far: they did not show that they belong here"


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
    strangers: Strangers = field(default_factory=Strangers)
    """Connections that were refused or turned away, by address."""
