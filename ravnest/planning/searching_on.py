"""A search that goes on from a plan while there is time: `ravnest plan --budget`.

In: a plan, and for how long. Out: a plan that is worth as much or more. It is the only part of planning that looks at a
clock, so its plans are not the same each time.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from cluster_planner import Plan, Step, format_rate, improve_plan
from ravnest.errors import InvalidInput
from ravnest.formatting import duration

BUDGET_PHASE = "budget"
"""Of the step that says why a search ended before its time was over."""


@dataclass(frozen=True)
class Budget:
    """How long a search goes on after the first plan."""

    seconds: float
    first: Callable[[Plan], None]
    """Is given the first plan, which is checked, before the search goes on."""
    stop: Callable[[], bool] = lambda: False
    """Is asked again and again whether to end now, with the best plan so far."""
    last: Callable[[], None] = lambda: None
    """Is called when the search has ended."""

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
    tell: Callable[[Step], None] = lambda step: None,
    clock: Callable[[], float] = time.monotonic,
) -> Plan:
    """The best plan that is found in time. `say` is told of each gain. `trained`: after how many samples of the fleet,
    and seconds, training ends. `part` is told how much of the time is over, from 0 to 1, and `tell` why the search
    ended before, where neither the time nor the user has ended it.
    """
    began_s, first = clock(), plan.predicted.objective
    ends_s = began_s + budget.seconds
    told = first

    def gained(worth: float) -> None:
        nonlocal told
        if worth > told * (1 + 1e-3):
            told = worth
            say(f"searching on: the best plan so far is worth {format_rate(worth)}, {worth / first - 1:+.1%}")

    def is_over() -> bool:
        left_s = ends_s - clock()
        part(min(1.0, max(0.0, 1.0 - left_s / budget.seconds)))
        return left_s <= 0 or budget.stop()

    def exhausted(changes: int) -> None:
        words = (
            f"the search ended by itself after {duration(clock() - began_s)} of {duration(budget.seconds)}:"
            f" {changes:,} changes in a row gained nothing"
        )
        tell(Step(BUDGET_PHASE, words, told, 0.0))

    samples, seconds = trained
    end = {"trained_samples": samples, "trained_s": seconds}
    return improve_plan(plan, is_over, **end, tell=gained, exhausted=exhausted, hurries=budget.stop)
