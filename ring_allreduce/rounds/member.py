"""When one member may merge a round. Sans-I/O; knows no vectors, sockets, clocks or epochs (design §7)."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from ring_allreduce.errors import InvalidInput
from ring_allreduce.rounds.events import MemberEvent, MergeRound, RoundCommitted


@dataclass
class RoundMember:
    """Says when one stage may merge: a round that is committed and whole here, in round order, each once."""

    rings: Iterable[str]
    """The rings that this stage belongs to."""

    _finished: dict[int, set[str]] = field(default_factory=dict)
    _committed: set[int] = field(default_factory=set)
    _merged: int = 0

    def __post_init__(self) -> None:
        self.rings = frozenset(self.rings)

    @property
    def merged(self) -> int:
        """The newest round that this stage was told to merge, 0 before the first."""
        return self._merged

    def handle(self, event: MemberEvent, now_s: float) -> list[MergeRound]:
        """The rounds to merge now, oldest first. Duplicates and rounds already merged have no effect."""
        if event.round > self._merged:
            if isinstance(event, RoundCommitted):
                self._committed.add(event.round)
            elif event.ring in self.rings:
                self._finished.setdefault(event.round, set()).add(event.ring)
            else:
                raise InvalidInput(f"ring {event.ring!r} is none of this stage's rings")
        merges = []
        while self._merged + 1 in self._committed and self._finished.get(self._merged + 1, set()) == self.rings:
            self._merged += 1
            self._committed.discard(self._merged)
            self._finished.pop(self._merged, None)
            merges.append(MergeRound(self._merged))
        return merges
