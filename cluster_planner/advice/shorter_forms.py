"""What a shorter form of activations and gradients would gain, where links limit clusters.

Which form a job has is never the search's choice, since a shorter one learns a little less and the objective does not
know that. So all is predicted again with it, with clusters, cuts and windows as they are, and what that brings is said.
Only forms that end at most 1 % higher in experiments/wire are tried.
"""

from collections.abc import Sequence
from dataclasses import replace

from cluster_planner.advice.job_changes import Suggestion, most_of
from cluster_planner.inputs.fleet import Fleet
from cluster_planner.inputs.spans import SpanCosts
from cluster_planner.plan import Cluster, Ring
from cluster_planner.predict.prediction import Forecast, predict

RATIOS = {"int8": 65 / 256, "int4": 17 / 128}
"""What a float32 byte takes in these forms, scales included, from long to short."""

LINKS = frozenset({"uplink", "downlink", "link"})
"""The kinds of limits that fewer bytes may lift."""


def shorter_forms(
    fleet: Fleet, spans: SpanCosts, clusters: Sequence[Cluster], rings: Sequence[Ring], forecast: Forecast
) -> list[Suggestion]:
    """Return the longest form that brings most of what can be had so; nothing where no cluster's links limit it."""
    work = spans.workload
    if not any(limit.kind in LINKS for limit in forecast.limits):
        return []
    sizes = []
    for form, ratio in RATIOS.items():
        forth, back = min(ratio, work.activation_wire_ratio), min(ratio, work.gradient_wire_ratio)
        changed = replace(work, activation_wire_ratio=forth, gradient_wire_ratio=back)
        if changed != work:
            made = predict(fleet, spans.under(changed), clusters, rings).prediction
            words = f"{form} as the form in which activations and gradients travel (wire)"
            sizes.append(Suggestion(words, made.samples_per_s, made.objective, None, (fleet, changed)))
    best = most_of(sizes, forecast.prediction.objective)
    return [] if best is None else [best]
