"""What shorter forms would gain: of activations and gradients where links limit clusters, of rounds where these wait.

Which form a job has is never the search's choice, since a shorter one learns a little less and the objective does not
know that. So all is predicted again with it, with clusters, cuts and windows as they are, and what that brings is said.
Only forms are tried that end at most 1 % higher across cuts, and 0.2 % in rounds, in experiments/wire. What rounds in a
shorter form feed back takes memory; where that lacks, they are not suggested.
"""

from collections.abc import Sequence
from dataclasses import replace

from cluster_planner.advice.job_changes import Suggestion, fitting, most_of
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


def shorter_rounds(
    fleet: Fleet, spans: SpanCosts, clusters: Sequence[Cluster], rings: Sequence[Ring], forecast: Forecast
) -> list[Suggestion]:
    """Return the longest form of rounds that brings most of what can be had so; nothing where no cluster waits for
    averaging.
    """
    work = spans.workload
    if not any(limit.kind == "averaging" for limit in forecast.limits):
        return []
    fed_back = 1.0 + work.max_lag if work.averaged_bytes_per_parameter_byte == 1.0 else 0.0
    kept = work.averaging_state_bytes_per_parameter_byte + fed_back
    sizes = []
    for form, ratio in RATIOS.items():
        changed = replace(work, averaged_bytes_per_parameter_byte=ratio, averaging_state_bytes_per_parameter_byte=kept)
        shorter = ratio < work.averaged_bytes_per_parameter_byte
        if shorter and (made := fitting(fleet, spans.under(changed), clusters, rings)) is not None:
            words = f"{form} as the form in which rounds travel (averaging.wire)"
            sizes.append(Suggestion(words, *made, None, (fleet, changed)))
    best = most_of(sizes, forecast.prediction.objective)
    return [] if best is None else [best]
