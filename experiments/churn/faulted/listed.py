"""Which faults happen when: each kind at each moment, in an order by a seed.

In: a seed and a number. Out: sessions, each of which is one run with a few faults, the first of them while it starts.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

KINDS = ("kill", "freeze", "cut", "slow", "disk full", "garbage", "two", "driver")
"""A stage is killed, or stopped for 20 s; its machine's link is cut, or has a hundredth of its rate; the disk of the
run's folder is full; what no stage sends comes to a stage's ports; two stages are killed at once; the driver is killed,
and started again."""

MOMENTS = ("start", "training", "averaging", "checkpoint", "recovery")
"""While stages start; whenever the run trains; right after a round was committed, when the next is under way; when a
checkpoint's folder appears; and within seconds of the loss of a cluster by another kill."""

LATER = 4
"""The faults of a session after the first. A cluster that is started five times within ten minutes stays out."""


@dataclass(frozen=True)
class Fault:
    """A fault with its number in the list, by which it draws its own chances."""

    number: int
    kind: str
    moment: str

    def chance(self) -> random.Random:
        """What this fault leaves to chance, always the same."""
        return random.Random(f"fault/{self.number}")


@dataclass(frozen=True)
class Session:
    """A run of this number, with these faults in order."""

    number: int
    faults: tuple[Fault, ...]


UNDISTURBED = Session(-1, ())
"""The same run to which nothing happens."""


def sessions(count: int, seed: int = 0) -> list[Session]:
    """Return sessions with `count` faults in all, rounded up to whole sessions."""
    early, late = _forever(MOMENTS[:1], seed), _forever(MOMENTS[1:], seed + 1)
    found, number = list[Session](), 0
    while number < count:
        chosen = [*islice(early, 1), *islice(late, LATER)]
        found.append(Session(len(found), tuple(Fault(number + i, *one) for i, one in enumerate(chosen))))
        number += len(chosen)
    return found


def _forever(moments: tuple[str, ...], seed: int) -> Iterator[tuple[str, str]]:
    """Yields (kind, moment): all of them once in some order, then all again in another."""
    draw = random.Random(seed)
    every = [(kind, moment) for moment in moments for kind in KINDS]
    while True:
        draw.shuffle(every)
        yield from every
