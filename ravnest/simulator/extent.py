"""How long a simulation goes on where nobody says: to the job's own end, or as far as MOST_EVENTS reach.

Decides it by the plan alone, without this machine's clock, so that the same seed gives the same figures anywhere. What
a sample takes in events, a short run shows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cluster_planner import Plan
from ravnest.simulator.scenario import Scenario
from ravnest.simulator.simulate import simulate

MOST_EVENTS = 5_000_000
"""Half a minute to a minute of one core."""
HOUR_S = 3600.0
"""Where the job ends after epochs, whose samples the plan does not know."""
_TRIED_EVENTS = 50_000
_LEAST_UPDATES = 4
_LONGER = 4


@dataclass(frozen=True)
class Extent:
    """Until when: one of `samples` and `seconds`, both as `simulate` takes them."""

    samples: int | None
    seconds: float | None
    reason: str
    """In words, for who asked for no end."""


def default_extent(plan: Plan, scenario: Scenario, seed: int, *, most_events: int = MOST_EVENTS) -> Extent:
    """`most_events`: about how many are simulated at most."""
    samples, seconds, end = _stop(plan)
    wanted = samples if samples is not None else (seconds or HOUR_S) * plan.predicted.samples_per_s
    per_update = plan.workload.micro_batch * plan.workload.update_every * len(plan.clusters)
    tried = _LEAST_UPDATES * per_update
    while tried < wanted:
        made = simulate(plan, scenario, samples=tried, seed=seed)
        if made.events >= _TRIED_EVENTS:
            affordable = int(made.samples * most_events / made.events)
            if affordable < wanted:
                few = max(affordable, tried)
                reason = (
                    f"that is {few / wanted:.2g} of {end}, as far as some {most_events / 1e6:g} million events reach"
                )
                return Extent(few, None, f"{reason}; --samples or --hours goes on")
            break
        tried *= _LONGER
    return Extent(samples, seconds, f"that is {end}")


def _stop(plan: Plan) -> tuple[int | None, float | None, str]:
    """Samples or seconds, and their name."""
    stop = plan.job.get("stop")
    said = stop if isinstance(stop, Mapping) else {}
    samples, minutes = said.get("samples"), said.get("minutes")
    if isinstance(samples, int):
        return samples, None, f"the job's own end ({samples:,} samples)"
    if isinstance(minutes, int | float):
        return None, 60.0 * minutes, f"the job's own end ({minutes:g} minutes)"
    return None, HOUR_S, "an hour, for the plan does not know how many samples the job's epochs are"
