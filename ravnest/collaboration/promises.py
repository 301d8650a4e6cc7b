"""What was asked of each peer, who keeps its word, and how long a contribution may take. Pure.

In: what is asked, what comes of it, and when. Out: who is doubted, and the patience with contributions. Who was counted
on and has not sent in time what was asked of it has broken its word, and is doubted until it has kept its word 2, 4, 8,
… times.
"""

from collections import Counter, deque
from dataclasses import dataclass
from statistics import median

FIRST_PATIENCE_S = 120.0
"""How long a contribution may take while none has come yet: models and links of any size begin here."""

LEAST_PATIENCE_S = 5.0
PATIENCE_FACTOR = 4.0
"""A contribution may take so many times the longest one of the last `RECENT`, and never less than LEAST_PATIENCE_S. Of
the longest one no more counts than so many times the median over peers: else who always comes last would be waited for
longer each time."""

RECENT = 32

MOST_BROKEN = 10
"""A peer is doubted until it has kept its word at most 2 to this power of times."""


@dataclass(frozen=True)
class Asked:
    """What was asked of a peer when a step was opened."""

    step: int
    samples: int
    until_s: float
    alone: bool
    """Whether it alone was asked, while others compute."""


class Promises:
    """Owns what is asked of peers, and what is thought of each."""

    def __init__(self) -> None:
        self._asked: dict[str, Asked] = {}
        self._broken: Counter[str] = Counter()  # how often a peer has broken its word
        self._doubted: Counter[str] = Counter()  # in how many steps it has to keep its word from now on
        self._took_s: deque[float] = deque(maxlen=RECENT)
        self._took_last_s: dict[str, float] = {}  # by peer

    @property
    def patience_s(self) -> float:
        """How long a contribution may take."""
        if not self._took_s:
            return FIRST_PATIENCE_S
        longest_s = max(self._took_s)
        if self._took_last_s:
            longest_s = min(longest_s, PATIENCE_FACTOR * median(self._took_last_s.values()))
        return max(LEAST_PATIENCE_S, PATIENCE_FACTOR * longest_s)

    def doubts(self, peer: str) -> bool:
        """Whether it is counted on no more, until it has kept its word often enough."""
        return self._doubted[peer] > 0

    def ask(self, peer: str, asked: Asked) -> None:
        """This is asked of it now, and nothing else."""
        self._asked[peer] = asked

    def is_asked(self, peer: str, step: int, now_s: float) -> bool:
        """Whether what was asked of it for that step may still come: it is not asked again before that."""
        asked = self._asked.get(peer)
        return asked is not None and asked.step == step and now_s < asked.until_s

    def samples(self, peer: str) -> int:
        """What it has to send still."""
        asked = self._asked.get(peer)
        return 0 if asked is None else asked.samples

    def came(self, peer: str, step: int, samples: int, now_s: float) -> bool:
        """It has sent so much for that step; returns whether it alone was asked for it."""
        asked = self._asked.get(peer)
        if asked is None or asked.step != step:  # nothing was asked, or what came of it was decided then
            return False
        del self._asked[peer]
        if samples < asked.samples:
            self.broke(peer)
        elif now_s <= asked.until_s and self._doubted[peer]:
            self._doubted[peer] -= 1
        return asked.alone

    def take_back(self, peer: str) -> None:
        """What was asked of it is not needed any more."""
        self._asked.pop(peer, None)

    def refused(self, peer: str, step: int) -> bool:
        """What it has sent cannot be added; returns whether it alone was asked for it."""
        asked = self._asked.get(peer)
        if asked is None or asked.step != step:
            return False
        self.broke(peer)
        return asked.alone

    def took(self, peer: str, seconds: float) -> None:
        """Its contribution took so long."""
        self._took_last_s[peer] = max(0.0, seconds)
        self._took_s.append(self._took_last_s[peer])

    def broke(self, peer: str) -> None:
        """It has not kept its word."""
        self._asked.pop(peer, None)
        self._broken[peer] = min(self._broken[peer] + 1, MOST_BROKEN)
        self._doubted[peer] = 2 ** self._broken[peer]

    def forget(self, peer: str) -> None:
        """It has left."""
        for known in (self._asked, self._broken, self._doubted, self._took_last_s):
            known.pop(peer, None)
