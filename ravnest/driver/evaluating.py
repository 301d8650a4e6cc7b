"""When the held-out set is evaluated, and by which cluster. Pure.

In: samples, and what becomes of the cluster that was asked. Out: when the next evaluation is due, and its number.
"""

from collections.abc import Sequence


class Evaluations:
    """The evaluations of a run. One is under way at a time."""

    def __init__(self, preferred: Sequence[str], start_samples: int, every: int) -> None:
        """`preferred`: all clusters, the one that is to evaluate first. Every so many samples an evaluation is due."""
        self._preferred = preferred
        self._every = every
        self._next = start_samples + every
        self._asked = False
        self.number = 0
        """The number of the last evaluation that was begun, 0 before the first."""
        self.samples = start_samples
        """What the fleet had trained on when it was begun."""
        self.by: str | None = None
        """The cluster that evaluates now; None while none does."""
        self._before = 0

    def go_on(self, number: int, samples: int) -> None:
        """Another driver has asked for the evaluations up to this number, and the fleet has come to `samples`."""
        self.number = self._before = number
        self.samples = samples
        self._next = (samples // self._every + 1) * self._every if samples >= self._next else self._next

    def is_of_before(self, number: int) -> bool:
        """Whether an evaluation of that number was asked for by another driver."""
        return number <= self._before

    def due(self, samples: int) -> bool:
        """Whether an evaluation is to begin now. It counts as begun then."""
        if self.by is not None or (samples < self._next and not self._asked):
            return False
        self._asked = False
        if samples < self._next:
            return True
        self._next += self._every * (1 + (samples - self._next) // self._every)
        return True

    def ask(self) -> None:
        """A user wants one: the next is due at once, and the regular ones are as they would have been."""
        self._asked = True

    def begin(self, training: Sequence[str], samples: int) -> str:
        """Begin an evaluation. Returns the cluster that makes it: the preferred one of those that train."""
        self.number += 1
        self.samples = samples
        self.by = next((name for name in self._preferred if name in training), training[0])
        return self.by

    def is_of(self, cluster: str, number: int) -> bool:
        """Whether the result of that number is awaited of that cluster."""
        return self.by == cluster and self.number == number

    def end(self) -> None:
        """The evaluation has ended, or its cluster is lost."""
        self.by = None
