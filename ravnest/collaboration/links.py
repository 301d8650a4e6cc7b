"""What an averaging program knows of the peers of a collaboration: their links, and how fast they compute. Pure.

In: measured rates. Out: frozen descriptions, or an InvalidInput that names the peer and the number.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from ravnest.errors import InvalidInput


@dataclass(frozen=True)
class PeerLinks:
    """One peer. Rates are in bytes per second, of which each direction has its own."""

    name: str
    up_bytes_per_s: float
    down_bytes_per_s: float
    samples_per_s: float
    """How fast it computes gradients; 0 for a machine that only helps to average."""
    keeps_state: bool = False
    """Whether it needs each average although it computes nothing, as a backbone does that writes checkpoints."""


@dataclass(frozen=True)
class Collaboration:
    """The peers that average together, what they average, and how large a batch they need for it."""

    peers: tuple[PeerLinks, ...]
    vector_bytes: float
    """Bytes of the gradient as it travels."""
    target_batch: float
    """Samples of one step."""
    pair_bytes_per_s: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """(from, to) → what this pair can carry at most; 0 where neither can open a connection to the other."""

    def __post_init__(self) -> None:
        """Raises InvalidInput for what cannot be: no peer, two of one name, a rate that is negative or not finite."""
        names = [peer.name for peer in self.peers]
        if not names or len(set(names)) != len(names):
            raise InvalidInput(f"a collaboration has peers, each with a name of its own; got {names}", key="peers")
        for peer in self.peers:
            for key in ("up_bytes_per_s", "down_bytes_per_s", "samples_per_s"):
                rate = getattr(peer, key)
                if not 0 <= rate < math.inf:
                    raise InvalidInput(f"{peer.name!r}: expected a finite number of at least 0, not {rate}", key=key)
        for key in ("vector_bytes", "target_batch"):
            if not 0 < getattr(self, key) < math.inf:
                raise InvalidInput(f"expected a finite number above 0, not {getattr(self, key)}", key=key)
        for pair, rate in self.pair_bytes_per_s.items():
            if not set(pair) <= set(names) or not rate >= 0:
                raise InvalidInput(f"expected two peers and a rate of at least 0, not {pair}: {rate}", key="pairs")

    @property
    def samples_per_s(self) -> float:
        """How fast all of them together compute."""
        return sum(peer.samples_per_s for peer in self.peers)

    def pair_limit(self, sender: int, receiver: int) -> float:
        """Bytes per second from one peer to another, by their places: the least of both links and of the pair's own."""
        one, other = self.peers[sender], self.peers[receiver]
        own = self.pair_bytes_per_s.get((one.name, other.name), math.inf)
        return min(own, one.up_bytes_per_s, other.down_bytes_per_s)
