"""One change that would help, and what plans are compared by when it is tried.

Decides nothing: changes are compared by what the plan is worth with them, the objective, since longer hours raise it
and no samples/s, and rarer averaging raises samples/s and makes each count less.
"""

from dataclasses import dataclass

WORTHWHILE = 0.01
"""Gains below this part of what the plan is worth are not worth a line of advice."""

MOST_OF = 0.9
"""Of several sizes of one change, the least is suggested that brings this part of what the best brings."""


@dataclass(frozen=True)
class Suggestion:
    """One change; what the fleet would make with it, and be worth (both samples/s); the index of the cluster it is
    about, None where it is about the job.
    """

    words: str
    samples_per_s: float
    worth: float
    cluster: int | None


def most_of(sizes: list[Suggestion], worth: float) -> Suggestion | None:
    """Of one change in several sizes, from small to large: the one to suggest to who has a plan of that `worth`."""
    best = max((one.worth - worth for one in sizes), default=0.0)
    if best <= WORTHWHILE * worth:
        return None
    return next(one for one in sizes if one.worth - worth >= MOST_OF * best)
