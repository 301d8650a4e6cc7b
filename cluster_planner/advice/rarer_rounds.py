"""Whether nodes stand idle because rounds of averaging are too near to each other, and with which average_every not.

Where a small model makes a round in less time than its averages travel, one cluster more gains nothing, and the search
leaves nodes out that could train. No change of a single machine or setting with the same clusters finds that, since the
clusters are what changes. So the plan is made anew with longer rounds, the longest first: where that uses no node more,
rounds are not the cause, and nothing else is tried.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

from cluster_planner.advice.job_changes import MOST_OF, WORTHWHILE
from cluster_planner.formatting import format_count, format_rate
from cluster_planner.inputs.model_costs import Workload
from cluster_planner.inputs.spans import SpanCosts
from cluster_planner.pipeline.memory_fit import MemoryFit
from cluster_planner.plan import Cluster, Plan, Prediction

TIMES = (4, 16, 64, 256)
"""The multiples of the present round that are tried."""

Planned: TypeAlias = tuple[Sequence[Cluster], Prediction]
"""Clusters that were planned, and what they are predicted to do."""


def idle_nodes(plan: Plan) -> list[str]:
    """Return the spares that could hold a part of the model."""
    fit = MemoryFit(plan.fleet, SpanCosts(plan.costs, plan.workload), 1)
    return [spare.node for spare in plan.spares if fit.holds_a_unit(spare.node)]


def said(plan: Plan, planned: Callable[[Workload], Planned | None], most_round: float = math.inf) -> str:
    """Return what to add to the advice: the least average_every that brings most of what a longer round does, and the
    nodes that train with it; empty where none gains. `planned` plans anew, or finds no plan; no round is tried that is
    longer than `most_round` samples.
    """
    idle = idle_nodes(plan)
    if not idle:
        return ""
    present = round(plan.workload.round_samples(len(plan.clusters)))
    rounds = [present * times for times in TIMES if present * times <= most_round]
    gains: dict[int, Planned] = {}
    for samples in reversed(rounds):
        made = planned(replace(plan.workload, average_every=samples))
        if made is not None and _gains(made, plan, idle):
            gains[samples] = made
        elif not gains:
            return ""
    if not gains:
        return ""
    now = plan.predicted.objective
    most = max(predicted.objective for _, predicted in gains.values()) - now
    least = min(samples for samples, (_, made) in gains.items() if made.objective - now >= MOST_OF * most)
    clusters, better = gains[least]
    trains = [node for node in idle if node in _running(clusters)]
    who = f"{trains[0]} trains" if len(trains) == 1 else f"{format_count(len(trains), 'more node')} train"
    return (
        f"; rounds are too near to each other for more clusters: with average_every {least} instead of"
        f" {plan.workload.average_every}, {who} too, {format_rate(better.samples_per_s)} samples/s"
        f" (worth {format_rate(better.objective)})"
    )


def _gains(made: Planned, plan: Plan, idle: list[str]) -> bool:
    clusters, predicted = made
    used = _running(clusters)
    worth = predicted.objective > plan.predicted.objective * (1 + WORTHWHILE)
    return worth and any(node in used for node in idle)


def _running(clusters: Sequence[Cluster]) -> set[str]:
    return {stage.node for cluster in clusters for stage in cluster.stages}
