"""A search that goes on from a plan while there is time: `ravnest plan --budget`.

In: a plan, and for how long. Out: a plan that is worth as much or more. It is the only part of planning that looks at a
clock, so its plans are not the same each time.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from cluster_planner import Plan, format_rate, improve_plan
from ravnest.errors import InvalidInput


@dataclass(frozen=True)
class Budget:
    """How long a search goes on after the first plan."""

    seconds: float
    first: Callable[[Plan], None]
    """Is given the first plan, which is checked, before the search goes on."""
    stop: Callable[[], bool] = lambda: False
    """Is asked again and again whether to end now, with the best plan so far."""

    def __post_init__(self) -> None:
        if not 0 < self.seconds < float("inf"):
            raise InvalidInput(f"must be a finite number of seconds above 0, not {self.seconds:g}", key="budget")


def searched_on(
    plan: Plan,
    budget: Budget,
    say: Callable[[str], None],
    *,
    trained: tuple[float, float],
    part: Callable[[float], None] = lambda done: None,
    clock: Callable[[], float] = time.monotonic,
) -> Plan:
    """The best plan that is found in time. `say` is told of each gain. `trained`: after how many samples of the fleet,
    and seconds, training ends. `part` is told how much of the time is over, from 0 to 1.
    """
    ends_s, first = clock() + budget.seconds, plan.predicted.objective
    told = first

    def go_on(worth: float) -> bool:
        nonlocal told
        if worth > told * (1 + 1e-3):
            told = worth
            say(f"searching on: the best plan so far is worth {format_rate(worth)}, {worth / first - 1:+.1%}")
        left_s = ends_s - clock()
        part(min(1.0, max(0.0, 1.0 - left_s / budget.seconds)))
        return left_s > 0 and not budget.stop()

    samples, seconds = trained
    return improve_plan(plan, go_on, trained_samples=samples, trained_s=seconds)
