"""What one member keeps of the rounds that are not committed: its contributions, and the averages that are whole.

Decides which rounds are finished and which are too far ahead. Knows no machine, no peer and no chunk.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor

Key = tuple[str, int]
"""Ring and round."""


@dataclass(frozen=True)
class RingResult:
    """The average of one ring in one round. Read `average`, never write to it: parts may still be leaving.

    Its memory is used again after RingReducer.commit().
    """

    ring: str
    round: int
    average: Tensor
    total_weight: float
    counters: tuple[int, ...]


@dataclass(frozen=True)
class Contribution:
    """This member's part in one ring and round. The vector is the caller's own memory."""

    vector: Tensor
    weight: float
    counters: tuple[int, ...]


class KeptRounds:
    """The rounds after the last commit, over all rings of one member."""

    def __init__(self, rings: Iterable[str], max_rounds: int, committed: int) -> None:
        """`max_rounds`: see RingReducer. `committed`: the round before the first one."""
        self.rings = frozenset(rings)
        self.committed = committed
        self.contributions: dict[Key, Contribution] = {}
        self._max_rounds = max_rounds
        self._whole: dict[Key, tuple[RingResult, int]] = {}

    def add(self, result: RingResult, epoch: int) -> None:
        """`result` became whole in `epoch`."""
        self._whole[result.ring, result.round] = result, epoch

    def whole(self, ring: str, round: int) -> RingResult | None:  # noqa: A002 - our word
        """The average, when it is whole here and not committed."""
        found = self._whole.get((ring, round))
        return found[0] if found else None

    def forget(self, ring: str, round: int) -> None:  # noqa: A002 - our word
        """The average is not whole any more: its round starts again."""
        self._whole.pop((ring, round), None)

    def holding(self) -> list[Key]:
        """(ring, round) of the whole averages, in order."""
        return sorted(self._whole)

    def closed(self, ring: str, round: int, epoch: int) -> bool:  # noqa: A002 - our word
        """Whether nothing can come for a round in `epoch` any more.

        A round that was whole in an older epoch is not closed: another member may already have been told that it
        starts again.
        """
        found = self._whole.get((ring, round))
        return round <= self.committed or (found is not None and found[1] == epoch)

    def finished_to(self, ring: str) -> int:
        """The round up to which all of them are whole or committed."""
        last = self.committed
        while (ring, last + 1) in self._whole:
            last += 1
        return last

    def too_far(self, ring: str, round: int) -> str | None:  # noqa: A002 - our word
        """Why a round cannot have begun anywhere; None when it may.

        A round is committed only when all have finished it, and nobody contributes max_rounds beyond a commit.
        """
        finished = self.finished_to(ring)
        if round <= finished + self._max_rounds:
            return None
        return f"more than {self._max_rounds} rounds ahead of round {finished}"

    def commit(self, round: int) -> list[RingResult]:  # noqa: A002 - our word
        """Forget everything of the rounds up to `round`; the averages that were kept of them."""
        self.committed = max(self.committed, round)
        gone = [self._whole.pop(key)[0] for key in self.holding() if key[1] <= round]
        for key in [key for key in self.contributions if key[1] <= round]:
            del self.contributions[key]
        return gone
