"""Whether a simulated run was long enough for its steady state to be compared with a prediction. Pure.

Decides how much has to lie in it. When it begins is decided in simulate.py.
"""

from __future__ import annotations

from cluster_planner import Plan
from ravnest.simulator.simulated_run import Simulated

LEAST_UPDATES = 10
"""Of the slowest cluster. Rates are counted in whole updates, so one update is up to a tenth of the rate."""


def too_short(result: Simulated, plan: Plan) -> str | None:
    """Why the run has shown no steady state, in words; None where it has."""
    seconds = result.drain_s - result.steady_from_s
    per_update = plan.workload.micro_batch * plan.workload.update_every
    updates = {name: round(rate * seconds / per_update) for name, rate in result.clusters.items()}
    slowest = min(updates, key=lambda name: updates[name])
    if seconds <= 0 or updates[slowest] < LEAST_UPDATES:
        return f"it holds {updates[slowest]} updates of {slowest}, and takes {LEAST_UPDATES}"
    if len(plan.clusters) > 1 and result.rounds < 2:
        return "no round of averaging was complete before the end of training"
    return None
