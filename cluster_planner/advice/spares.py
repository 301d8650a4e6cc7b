"""Why a node is left out: the reason that a plan gives for each spare.

Its memory holds no unit; or it holds the whole model, and the plan is worth more without a cluster of it alone, whose
rounds the others would wait for or which makes their samples count for less; or it may join no cluster; or the nearest
cluster that it may join does better without it.
Of many spares each has one short line: that no cluster gains with it, where the search has tried that one by one.
Where the search is exact, the best pipeline that does use the node is found too, and both rates are named: of the
pipelines while nothing is averaged, since what rounds cost is the whole fleet's.
"""

from collections.abc import Collection, Sequence

from cluster_planner.formatting import format_rate
from cluster_planner.inputs.fleet import CUDA_HOST_BYTES, Fleet, Node
from cluster_planner.inputs.spans import SpanCosts
from cluster_planner.pipeline.best_pipeline import Pipeline, plan_pipeline
from cluster_planner.pipeline.memory_fit import MemoryFit
from cluster_planner.pipeline.order_and_cuts import is_exact
from cluster_planner.plan import Cluster, Spare
from cluster_planner.predict.plan_worths import PlanWorths

MOST_REASONS = 12
"""Where there are more spares than this, none is given figures of its own."""

NO_CLUSTER_GAINS = "no cluster gains with it"
"""The reason of one of many spares that was tried in the clusters nearest to it, and in a new one with others."""

NOTHING_GAINED = "no plan with it that was looked at is worth more"
"""The reason of one of many spares that was not tried so: what the search knows, and no more."""

RATES_APART = " (rounds of averaging apart)"
"""A remark on what the rates of one cluster among others leave out."""


def too_small(fleet: Fleet, memory_fit: MemoryFit) -> tuple[Spare, ...]:
    """Return the nodes that have memory for no unit at all."""
    return tuple(
        Spare(node.name, _too_small(node, memory_fit)) for node in fleet.nodes if not memory_fit.holds_a_unit(node.name)
    )


def _too_small(node: Node, memory_fit: MemoryFit) -> str:
    has, need, own = node.room_bytes, memory_fit.smallest_unit_bytes, ""
    if has >= need and node.host_memory_bytes is not None:
        own, has = " of its machine's own memory", node.host_memory_bytes
        need = memory_fit.least_host_bytes() + CUDA_HOST_BYTES
    return f"its {format_rate(has / 1e9)} GB{own} hold no unit: the smallest needs {format_rate(need / 1e9)} GB"


def left_out(
    fleet: Fleet,
    spans: SpanCosts,
    clusters: Sequence[Cluster],
    idle: Sequence[str],
    least: int,
    tried: Collection[str] = (),
) -> tuple[Spare, ...]:
    """Return the `idle` nodes, each with what it would do to the nearest cluster that it may join; where they are very
    many, with one short line. `tried`: the nodes with which no cluster gains, as the search has found.
    """
    if len(idle) > MOST_REASONS:
        return tuple(Spare(name, NO_CLUSTER_GAINS if name in tried else NOTHING_GAINED) for name in idle)
    without: dict[str, Pipeline | None] = {}
    spares, worths = [], PlanWorths(fleet, spans)
    for name in idle:
        if least == 1 and (lowered := _lowered_alone(fleet, spans, worths, clusters, name)) is not None:
            spares.append(Spare(name, lowered))
            continue
        broken = {cluster.name: _broken(fleet, name, cluster) for cluster in clusters}
        nearest = sorted(clusters, key=lambda cluster: _latency_s(fleet, name, cluster))
        cluster = next((cluster for cluster in nearest if broken[cluster.name] is None), None)
        if cluster is None:
            first = nearest[0].name
            spares.append(Spare(name, f"may join no cluster: with it, {first} {broken[first]}"))
            continue
        if cluster.name not in without:
            used = [stage.node for stage in cluster.stages]
            without[cluster.name] = plan_pipeline(fleet, spans, used, 0.0, least)
        reason = _reason(fleet, spans, cluster, name, without[cluster.name], least)
        apart = RATES_APART if len(clusters) > 1 and "samples/s" in reason else ""
        spares.append(Spare(name, reason + apart))
    return tuple(spares)


def _lowered_alone(
    fleet: Fleet, spans: SpanCosts, worths: PlanWorths, clusters: Sequence[Cluster], name: str
) -> str | None:
    """Return that a cluster of this node alone would lower what the plan is worth; None where it would not, or where
    the node cannot be one.
    """
    if fleet.rules.broken([fleet.arrays.number_of[name]]) is not None:
        return None
    if (alone := plan_pipeline(fleet, spans, [name], 0.0, 1)) is None:
        return None
    now, then = worths.of(clusters), worths.of((*clusters, Cluster("", alone.window, alone.stages)))
    if then >= now * (1 - 1e-9):
        return None
    lowered = f"from {format_rate(now)} to {format_rate(then)} samples/s"
    return f"a cluster of its own would lower what the plan is worth {lowered}"


def _broken(fleet: Fleet, name: str, cluster: Cluster) -> str | None:
    """Return why the node may not join the cluster, after its name, or None where it may."""
    number_of = fleet.arrays.number_of
    return fleet.rules.broken([*(number_of[stage.node] for stage in cluster.stages), number_of[name]])


def _latency_s(fleet: Fleet, name: str, cluster: Cluster) -> float:
    number_of = fleet.arrays.number_of
    latency, _ = fleet.arrays.between([number_of[name]], [number_of[stage.node] for stage in cluster.stages])
    return float(latency.mean())


def _reason(
    fleet: Fleet,
    spans: SpanCosts,
    cluster: Cluster,
    name: str,
    without: Pipeline | None,
    least: int,
) -> str:
    nodes = [*(stage.node for stage in cluster.stages), name]
    including = None
    if is_exact(len(nodes), len(spans.positions)):
        including = plan_pipeline(fleet, spans, nodes, 0.0, least, required=name)
    if including is None or without is None:
        return f"{cluster.name} found no better use for it than to leave it out"
    rates = f"{format_rate(including.samples_per_s)} samples/s with it, {format_rate(without.samples_per_s)} without"
    if including.samples_per_s < without.samples_per_s * (1 - 1e-9):
        return f"would slow {cluster.name}: {rates}"
    with_it, alone = _presence(fleet, including), _presence(fleet, without)
    if with_it < alone and including.value < without.value:
        rates = f"{format_rate(including.samples_per_s)} samples/s with it for {with_it:.0%} of the day"
        return (
            f"is away too long for {cluster.name}: {rates}, "
            f"{format_rate(without.samples_per_s)} without for {alone:.0%}"
        )
    if including.value > without.value * (1 + 1e-9):
        return f"would speed {cluster.name} up ({rates}), but no plan with it was found that is worth more"
    if including.samples_per_s > without.samples_per_s * (1 + 1e-9):
        return f"would make {cluster.name} staler than its speed is worth: {rates}"
    return f"would not speed {cluster.name} up: {rates}"


def _presence(fleet: Fleet, pipeline: Pipeline) -> float:
    return fleet.rules.presence_of(stage.node for stage in pipeline.stages)
