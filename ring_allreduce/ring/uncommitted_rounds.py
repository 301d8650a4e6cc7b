"""What one member keeps of the rounds that are not committed: its contributions, and the averages that are whole.

Decides which rounds are finished and which are too far ahead. Knows no machine, no peer and no chunk.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor

RoundKey = tuple[str, int]
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


@dataclass
class RingContribution:
    """This member's part in one ring and round. The vector is the caller's own memory."""

    vector: Tensor
    weight: float
    counters: tuple[int, ...]
    carry: Tensor | None = None
    """What compression took from earlier rounds: added to weight · vector, the same when the round starts again."""
    residual: Tensor | None = None
    """What compression took in this round, so far as it went: the next round's carry once this one is committed."""


class UncommittedRounds:
    """The rounds after the last commit, over all rings of one member."""

    def __init__(self, rings: Iterable[str], max_rounds: int, committed: int) -> None:
        """`max_rounds`: see RingReducer. `committed`: the round before the first one."""
        self.rings = frozenset(rings)
        self.committed = committed
        self.contributions: dict[RoundKey, RingContribution] = {}
        self._max_rounds = max_rounds
        self._whole: dict[RoundKey, tuple[RingResult, int]] = {}
        self._carry: dict[str, Tensor] = {}

    def take_carry(self, ring: str) -> Tensor | None:
        """What compression took from the committed rounds of a ring; the one who asks first has it."""
        return self._carry.pop(ring, None)

    def add(self, result: RingResult, epoch: int) -> None:
        """`result` became whole in `epoch`."""
        self._whole[result.ring, result.round] = result, epoch

    def whole(self, ring: str, round: int) -> RingResult | None:  # noqa: A002 - our word
        """The average, when it is whole here and not committed."""
        found = self._whole.get((ring, round))
        return found[0] if found else None

    def forget(self, ring: str, round: int) -> RingResult | None:  # noqa: A002 - our word
        """The average, if there was one, is not whole any more: its round starts again."""
        found = self._whole.pop((ring, round), None)
        return found[0] if found else None

    def holding(self) -> list[RoundKey]:
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
        for key in sorted(key for key in self.contributions if key[1] <= round):
            residual = self.contributions.pop(key).residual
            if residual is not None:
                earlier = self._carry.get(key[0])
                self._carry[key[0]] = residual if earlier is None else residual.add_(earlier)
        return gone
