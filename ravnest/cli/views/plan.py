"""Shows a plan on a terminal or as JSON.

In: a plan. Out: a table for each cluster, then the rings, the spares and what limits the fleet; of a plan of more than
MOST_STAGES stages a summary, unless all is asked for; or one JSON document. This module decides the words and the
layout. Every figure comes from the plan or from cluster_planner.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cluster_planner import (
    DEFAULT_LATENCY_S,
    DEFAULT_REGION_LATENCY_S,
    Cluster,
    ClusterPrediction,
    Plan,
    Prediction,
    SingleNodePlan,
    SpanCosts,
    assumed_links,
    better_single_node,
    capped_links,
    demands_beside,
    format_count,
    format_rate,
)
from ravnest.cli.views.plan_hours import hours_there, never_at_once
from ravnest.formatting import TWICE_FORWARD, duration, listed, size
from ravnest.pipeline import stage_name

_WIDE = 110
LEGEND = "up, down: each micro-batch's time on uplink and downlink{}. busy: the part of the time that a stage computes"

MOST_STAGES = 24
"""A plan of more stages is summed up, unless all is asked for."""
MOST_CLUSTERS = 12
"""So many clusters have a line of their own in a summary."""

LOOSE = 0.5
"""A bound of which a plan reaches less than this part is said to be loose."""
LOOSE_WORDS = (
    "The bound is loose: it leaves out latency, whole units, and which links pipelines and averaging have to cross"
)

NEARLY = 0.005
"""A plan reaches the bound if it is worth less than the bound by no more than this part of it."""


def show_plan(plan: Plan, console: Console, *, everything: bool = False) -> None:
    """Prints the plan as tables, or, unless `everything` is asked for, a summary of a large one."""
    of = ((plan.fleet.nodes, "node"), (plan.clusters, "cluster"), (plan.costs.units, "unit"))
    parts = " · ".join(format_count(len(several), word) for several, word in of)
    console.print(f"{parts}, {size(plan.costs.parameter_bytes)} of weights", highlight=False)
    console.print()
    summed_up = not everything and sum(len(cluster.stages) for cluster in plan.clusters) > MOST_STAGES
    if summed_up:
        _show_summary(plan, console)
    else:
        _show_stages(plan, console)
    for names, reason in spares_by_reason(plan):
        why = reason if len(names) == 1 else f"of each: {reason}"
        console.print(f"spare: [bold]{escape(listed(names))}[/bold], {escape(why)}", highlight=False)
    for spare in plan.spares:
        if spare.shadows:
            followed = ", ".join(stage_name(*of) for of in spare.shadows)
            said = f"follows {followed}, and takes the place of one that is lost"
            console.print(f"warm spare: [bold]{escape(spare.node)}[/bold] {said}", highlight=False)
    for note in link_notes(plan):
        console.print(note, markup=False, highlight=False)
    console.print()
    console.print(_fleet_table(plan))
    if (sentence := whole_models(plan)) is not None:
        console.print()
        console.print(sentence, style="bold", markup=False, highlight=False)
    if (one := _better_alone(plan)) is not None:
        console.print()
        console.print(alone_words(one, plan), style="bold", markup=False, highlight=False)
    if summed_up:
        console.print("\n--all prints each stage and each ring.", style="dim", highlight=False)


def _show_stages(plan: Plan, console: Console) -> None:
    for cluster, predicted in zip(plan.clusters, plan.predicted.clusters, strict=True):
        console.print(_cluster_table(plan, cluster, predicted, wide=console.width >= _WIDE))
        console.print(f"  limited by: {escape(predicted.bottleneck)}", highlight=False)
        console.print()
    console.print(legend(plan), style="dim", highlight=False)
    console.print()
    if len(plan.clusters) > 1:
        console.print(_rings_table(plan))


def legend(plan: Plan) -> str:
    """Returns what the columns of a cluster's table mean."""
    recomputes = any(stage.recomputes for cluster in plan.clusters for stage in cluster.stages)
    twice = f". {TWICE_FORWARD}" if recomputes else ""
    return LEGEND.format(", averaging included" if len(plan.clusters) > 1 else "") + twice


def _show_summary(plan: Plan, console: Console) -> None:
    """Prints a line for each of the first clusters, one for all others, and one for the rings."""
    table = Table(box=None, header_style="dim", pad_edge=False)
    table.add_column("  cluster", no_wrap=True)
    table.add_column("stages", justify="right", no_wrap=True)
    table.add_column("samples/s", justify="right", no_wrap=True)
    table.add_column("busy", justify="right", no_wrap=True)
    table.add_column("busiest stage", overflow="fold", style="bold")
    if console.width >= _WIDE:
        table.add_column("regions", overflow="fold", style="dim")
    work = plan.workload
    for cluster, predicted in list(zip(plan.clusters, plan.predicted.clusters, strict=True))[:MOST_CLUSTERS]:
        busiest = max(range(len(cluster.stages)), key=lambda i: predicted.stages[i].compute_s)
        cells = [
            f"  {escape(cluster.name)}",
            str(len(cluster.stages)),
            format_rate(predicted.samples_per_s),
            f"{predicted.busy(predicted.stages[busiest], work.micro_batch):.0%}",
            escape(cluster.stages[busiest].node),
        ]
        if console.width >= _WIDE:
            cells.append(escape(", ".join(_regions(plan, cluster))))
        table.add_row(*cells)
    console.print(table)
    if more := plan.clusters[MOST_CLUSTERS:]:
        rates = [one.samples_per_s for one in plan.predicted.clusters[MOST_CLUSTERS:]]
        sizes = [len(cluster.stages) for cluster in more]
        console.print(
            f"  and {format_count(len(more), 'more cluster')}: {_from_to(sizes)} stages,"
            f" {_from_to([format_rate(rate) for rate in (min(rates), max(rates))])} samples/s each",
            highlight=False,
        )
    if plan.rings and len(plan.clusters) > 1:
        start, end = max((ring.units for ring in plan.rings), key=lambda units: _weights(plan, units))
        console.print(
            f"  {format_count(len(plan.rings), 'ring')} of {_from_to([len(ring.members) for ring in plan.rings])}"
            f" members, of up to {size(_weights(plan, (start, end)))} of weights",
            highlight=False,
        )
    console.print()


def _regions(plan: Plan, cluster: Cluster) -> list[str]:
    """Returns the regions of a cluster's nodes, in the order of its stages."""
    return list(dict.fromkeys(plan.fleet.node(stage.node).region or "no region" for stage in cluster.stages))


def _from_to(values: Sequence[int] | Sequence[str]) -> str:
    least, most = (min(values), max(values)) if isinstance(values[0], int) else (values[0], values[-1])
    return str(least) if least == most else f"{least} to {most}"


def _weights(plan: Plan, units: tuple[int, int]) -> int:
    return sum(unit.parameter_bytes for unit in plan.costs.units[slice(*units)])


def spares_by_reason(plan: Plan) -> list[tuple[list[str], str]]:
    """Returns (the spare nodes, why they are) for each reason, in the order of the plan."""
    found: dict[str, list[str]] = {}
    for spare in plan.spares:
        found.setdefault(spare.reason, []).append(spare.node)
    return [(names, reason) for reason, names in found.items()]


def alone_words(one: SingleNodePlan, plan: Plan) -> str:
    """Returns the sentence that one node alone would be worth more than the plan, and how to have that."""
    demands = demands_beside(plan, one.node)
    way = f"leave {' and '.join(demands)} out, and planning finds that" if demands else "plan for that node alone"
    worth = "" if one.worth == one.samples_per_s else f", worth {format_rate(one.worth)} as it is not always there"
    return (
        f"{one.node} alone would make {format_rate(one.samples_per_s)} samples/s{worth}, and this plan is worth"
        f" {format_rate(plan.predicted.objective)}: {way}."
    )


def _better_alone(plan: Plan) -> SingleNodePlan | None:
    spans = SpanCosts(plan.costs, plan.workload)
    return better_single_node(plan.fleet, spans, plan.clusters, plan.predicted.objective)


def whole_models(plan: Plan) -> str | None:
    """Returns a sentence about the machines that hold the whole model by themselves; None where each cluster is a
    pipeline.
    """
    nodes = [cluster.stages[0].node for cluster in plan.clusters if len(cluster.stages) == 1]
    if not nodes:
        return None
    if len(plan.clusters) == 1:
        return f"{nodes[0]} holds the whole model: it trains alone, without a pipeline, and no tensor leaves it."
    if len(nodes) == len(plan.clusters):
        return (
            "Each machine holds the whole model: this is data-parallel training, without a pipeline. Nothing travels"
            " but what is averaged."
        )
    if len(nodes) == 1:
        holds = f"{nodes[0]} holds"
    elif len(nodes) <= MOST_CLUSTERS:
        holds = f"{', '.join(nodes[:-1])} and {nodes[-1]} each hold"
    else:
        holds = f"{listed(nodes)} each hold"
    return (
        f"{holds} the whole model: without a pipeline, data-parallel with the other clusters, and nothing travels"
        " there but what is averaged."
    )


def plan_document(plan: Plan, plan_path: Path, picture_path: Path) -> dict[str, object]:
    """Returns the plan as one JSON document, in SI units, with the paths of the files that were written.

    The job, the nodes and the units' costs are left out, since plan.yaml has them.
    """
    return {
        "plan": str(plan_path),
        "picture": str(picture_path),
        "clusters": [asdict(cluster) for cluster in plan.clusters],
        "rings": [asdict(ring) for ring in plan.rings],
        "spares": [asdict(spare) for spare in plan.spares],
        "predicted": asdict(plan.predicted),
        "better_alone": None if (one := _better_alone(plan)) is None else asdict(one),
        "assumed_links": assumed_links(plan),
        "capped_links": capped_links(plan),
        "workload": asdict(plan.workload),
        "unit_names": [unit.name for unit in plan.costs.units],
        "fingerprint": plan.costs.fingerprint,
        "seed": plan.seed,
    }


def _cluster_table(plan: Plan, cluster: Cluster, predicted: ClusterPrediction, *, wide: bool) -> Table:
    """Returns the table of one cluster; with `wide` it names the first and the last unit of each stage."""
    title = (
        f"[bold]{escape(cluster.name)}[/bold]: {format_rate(predicted.samples_per_s)} samples/s, "
        f"window {cluster.window}, round trip {duration(predicted.round_trip_s)}{hours_there(plan, cluster)}"
    )
    table = Table(
        title=title,
        title_justify="left",
        title_style="",
        box=None,
        header_style="dim",
        pad_edge=False,
        padding=(0, 1) if wide else (0, 1, 0, 0),
    )
    table.add_column("  stage", no_wrap=True)
    table.add_column(
        "node", style="bold", overflow="fold", min_width=max(len(s.node) for s in cluster.stages) if wide else None
    )
    table.add_column("units", no_wrap=True)
    for name in ("compute", "up", "down", "busy", "memory"):
        table.add_column(name, justify="right", no_wrap=True)
    if wide:
        table.add_column("from … to", style="dim", overflow="fold")
    for i, (stage, costs) in enumerate(zip(cluster.stages, predicted.stages, strict=True)):
        start, end = stage.units
        node = plan.fleet.node(stage.node)
        slowest = costs.occupancy_s >= predicted.bottleneck_s * 0.999
        cells = [
            f"  {i}",
            escape(stage.node),
            f"[{start}, {end}){' twice forward' if stage.recomputes else ''}",
            duration(costs.compute_s),
            duration(costs.up_s),
            duration(costs.down_s),
            f"{predicted.busy(costs, plan.workload.micro_batch):.0%}",
            f"{size(costs.memory_bytes + node.beyond_bytes)} of {size(node.memory_bytes)}",
        ]
        if wide:
            cells.append(escape(_span_words(plan, start, end)))
        table.add_row(*cells, style="yellow" if slowest else "")
    return table


def _span_words(plan: Plan, start: int, end: int) -> str:
    first, last = plan.costs.units[start].name, plan.costs.units[end - 1].name
    return first if first == last else f"{first} … {last}"


def _rings_table(plan: Plan) -> Table:
    table = Table(box=None, header_style="dim", pad_edge=False)
    table.add_column("  ring")
    table.add_column("units")
    table.add_column("weights", justify="right")
    table.add_column("passes chunks along")
    for i, ring in enumerate(plan.rings):
        start, end = ring.units
        nodes = [plan.cluster(name).stages[stage].node for name, stage in ring.members]
        table.add_row(f"  {i}", f"[{start}, {end})", size(_weights(plan, ring.units)), escape(" → ".join(nodes)))
    return table


def _worth(plan: Plan) -> str:
    """Returns how much the samples of the plan count, and which effects are assumed to cost the rest."""
    predicted, away = plan.predicted, any(hours_there(plan, cluster) for cluster in plan.clusters)
    costs = [
        *(["staleness"] if _is_stale(plan) else []),
        *(["rarer averaging"] if len(plan.clusters) > 1 else []),
        *(["absence"] if away else []),
    ]
    if not costs:
        return f"{format_rate(predicted.objective)}: all of its samples/s count, as those of one synchronous cluster do"
    listed = costs[0] if len(costs) == 1 else f"{', '.join(costs[:-1])} and {costs[-1]}"
    return (
        f"{format_rate(predicted.objective)}: its samples/s, less {1 - predicted.efficiency:.0%} that {listed}"
        f" {'is' if len(costs) == 1 else 'are'} assumed to cost, beside one synchronous cluster"
    )


def _is_stale(plan: Plan) -> bool:
    """Says whether a gradient of this plan may be stale."""
    return plan.workload.max_staleness > 0 and any(len(c.stages) > 1 and c.window > 1 for c in plan.clusters)


def _bound(objective: float, best_possible: float) -> str:
    """Returns how much of the most that any plan could be worth this plan reaches."""
    reached = objective / best_possible
    words = f"no plan can be worth more than {format_rate(best_possible)}"
    if reached > 1 - NEARLY:
        return f"{words}, and this one is worth as much"
    loose = f". {LOOSE_WORDS}" if reached < LOOSE else ""
    return f"{words}: with {format_rate(objective)} this one reaches {reached:.0%} of that{loose}"


def _averaging(plan: Plan) -> str:
    """Returns in words how long a round takes, and how far apart rounds are."""
    predicted, round_samples = plan.predicted, plan.workload.round_samples(len(plan.clusters))
    every = duration(round_samples / predicted.samples_per_s)
    return f"a round of {round(round_samples):,} samples: {round_times(predicted)}; one every {every}"


def round_times(predicted: Prediction) -> str:
    """Returns in words how long a round is predicted to take in training, where that is known, and on idle links."""
    loaded = "" if (seconds := predicted.loaded_averaging_s) is None else f"{duration(seconds)} in training, "
    return f"{loaded}{duration(predicted.averaging_s)} on idle links"


def _fleet_table(plan: Plan) -> Table:
    predicted = plan.predicted
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row("predicted", f"[bold]{format_rate(predicted.samples_per_s)} samples/s[/bold]{never_at_once(plan)}")
    table.add_row("worth", _worth(plan))
    if predicted.best_possible is not None:
        table.add_row("bound", _bound(predicted.objective, predicted.best_possible))
    if len(plan.clusters) > 1:
        table.add_row("averaging", _averaging(plan))
    table.add_row("bottleneck", escape(predicted.bottleneck))
    table.add_row("advice", escape(predicted.advice))
    return table


_MBPS = 125_000.0


def link_notes(plan: Plan) -> list[str]:
    """Returns the remarks about the links of a plan, one line each."""
    return [line for line in (assumption(plan), beyond_nodes(plan)) if line is not None]


def assumption(plan: Plan) -> str | None:
    """Returns what the plan assumes of links that nodes.yaml does not describe; None where there are none."""
    if not (pairs := assumed_links(plan)):
        return None
    if plan.fleet.links or plan.fleet.regions:
        of = f"the link between {_and_more(pairs)}"
    else:
        of = f"any link, for neither links nor regions are given: {_and_more(pairs)}"
    if all(plan.fleet.link(*pair).latency_s == DEFAULT_REGION_LATENCY_S for pair in pairs):
        latency = f"{DEFAULT_REGION_LATENCY_S * 1e3:g} ms one way, as within a region"
    else:
        latency = f"{DEFAULT_LATENCY_S * 1e3:g} ms one way ({DEFAULT_REGION_LATENCY_S * 1e3:g} ms within a region)"
    rate = "no limit but that of the nodes"
    return f"assumed: nothing is known of {of}: {latency}, and {rate}; state it under links or regions"


def beyond_nodes(plan: Plan) -> str | None:
    """Returns how much counts of link rates that exceed what the nodes carry; None where no rate does."""
    if not (pairs := capped_links(plan)):
        return None
    a, b = pairs[0]
    stated = plan.fleet.link(a, b).bytes_per_s
    counts = max(plan.fleet.flow_bytes_per_s(a, b), plan.fleet.flow_bytes_per_s(b, a))
    return (
        f"note: mbps is above what the nodes' up_mbps and down_mbps carry for {_and_more(pairs)}: of {a} – {b}, "
        f"{format_rate(counts / _MBPS)} of {format_rate(stated / _MBPS)} count. up_mbps and down_mbps are of all of a "
        "machine's links together, those of its LAN included"
    )


def _and_more(pairs: list[tuple[str, str]]) -> str:
    more = len(pairs) - 1
    return f"{pairs[0][0]} and {pairs[0][1]}" + (f" (and {format_count(more, 'more pair')})" if more else "")
