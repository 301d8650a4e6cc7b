"""Whether what a plan predicts is still true of it, since a plan.yaml may have been edited.

Decides by predicting it again as it stands: figures further from the file's than SAME are called old. Its advice and
its bound stay those of the search.
"""

from dataclasses import replace

from cluster_planner.formatting import rate
from cluster_planner.inputs.spans import SpanCosts
from cluster_planner.plan import Plan, Prediction
from cluster_planner.predict.prediction import predict

SAME = 0.01
"""By so much of it a figure may differ: of another version's formulas, too, which may be finer."""


def predicted_again(plan: Plan) -> Plan:
    """The plan, with the figures of the plan as it stands; the same object where they are what it says."""
    made = predict(plan.fleet, SpanCosts(plan.costs, plan.workload), plan.clusters, plan.rings).prediction
    if _agree(plan.predicted, made):
        return plan
    kept = {"advice": plan.predicted.advice, "best_possible": plan.predicted.best_possible}
    return replace(plan, predicted=replace(made, **kept))  # type: ignore[arg-type]


def outdated(plan: Plan, again: Plan) -> str | None:
    """What to tell of a plan whose figures `again` has as they are now; None where they are the same."""
    if again is plan:
        return None
    before, now = plan.predicted.samples_per_s, again.predicted.samples_per_s
    words = "figures under predicted are not of the plan as it stands (edited since, or made by another version)"
    return words if _near(before, now) else f"{words}: it would make {rate(now)} samples/s, not {rate(before)}"


def _agree(old: Prediction, new: Prediction) -> bool:
    pairs = [(old.samples_per_s, new.samples_per_s), (old.averaging_s, new.averaging_s)]
    for mine, theirs in zip(old.clusters, new.clusters, strict=True):
        pairs += [(mine.samples_per_s, theirs.samples_per_s), (mine.round_trip_s, theirs.round_trip_s)]
        for a, b in zip(mine.stages, theirs.stages, strict=True):
            pairs += [(a.compute_s, b.compute_s), (a.memory_bytes, b.memory_bytes)]
    return all(_near(a, b) for a, b in pairs)


def _near(a: float, b: float) -> bool:
    return abs(a - b) <= SAME * max(abs(a), abs(b))
