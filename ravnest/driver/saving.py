"""Which rounds are being saved, and which stages still have to send their state for that. Pure.

In: commits, states that were sent, losses. Out: when the next checkpoint is due, and when one is whole. A checkpoint
under way is given up when a stage is lost, because the keeper of a segment may be lost with it, and what the others
have sent is of a moment that has passed.
"""

from collections.abc import Iterable


class Saving:
    """The checkpoints of a run that are under way."""

    def __init__(self, start_samples: int, every: int) -> None:
        """The first checkpoint is due at `start_samples`, and another after each `every` samples."""
        self._every = every
        self._next = start_samples
        self._asked = False
        self._awaited: dict[int, set[str]] = {}
        self._abandoned: dict[int, set[str]] = {}
        """By round whose checkpoint was given up: the stages that still send their state, which is of no use."""

    @property
    def under_way(self) -> bool:
        """Whether stages are still sending their state for a checkpoint."""
        return bool(self._awaited)

    def due(self, samples: int) -> bool:
        """Whether the round that is committed now is to be saved. `samples` are the fleet's."""
        return not self._awaited and (self._asked or samples >= self._next)

    def ask(self) -> None:
        """A user wants one: the next round that is committed while none is under way is saved."""
        self._asked = True

    def begin(self, round_: int, stages: Iterable[str], samples: int) -> None:
        """These stages are going to send their state as of a round."""
        self._asked = False
        self._abandoned.pop(round_, None)
        self._awaited[round_] = set(stages)
        self._next = samples + self._every

    def expects(self, round_: int) -> bool:
        """Whether a state of this round is awaited, or was before its checkpoint was given up."""
        return round_ in self._awaited or round_ in self._abandoned

    def sent(self, stage: str, round_: int) -> bool:
        """A stage has sent its state. Returns whether the checkpoint of the round has all states now."""
        if round_ in self._abandoned:
            self._abandoned[round_].discard(stage)
            return False
        self._awaited[round_].discard(stage)
        if self._awaited[round_]:
            return False
        del self._awaited[round_]
        return True

    def abandon(self, lost: Iterable[str], samples: int) -> list[int]:
        """These stages are lost. Returns the rounds whose checkpoints are given up; the next one is due at once."""
        rounds = list(self._awaited)
        if rounds:
            self._next = samples
        self._abandoned |= self._awaited
        self._awaited = {}
        gone = set(lost)
        for sending in self._abandoned.values():
            sending -= gone
        return rounds

    def arriving(self, round_: int) -> bool:
        """Whether states are under way of a checkpoint of this round that was given up."""
        return bool(self._abandoned.get(round_))
