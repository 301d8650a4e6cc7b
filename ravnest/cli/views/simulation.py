"""Shows a simulated run: simulated against predicted, the time of each stage, and how far to trust the figures.

In: a SimulatedRun and its plan. Out: tables that fit 80 columns, and lines. This module decides the words and the
layout; the figures come from ravnest.simulator.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cluster_planner import Plan, format_rate
from ravnest.cli.views.plan import round_times
from ravnest.cli.views.tables import legend, say
from ravnest.formatting import duration, size
from ravnest.pipeline.time_ledger import KIND_OF_COMPUTE
from ravnest.simulator import BegunAnew, LostCluster, SimulatedRun
from ravnest.simulator.simulated_run import too_short

MOST_ROWS = 24
"""At most so many stages are shown: those that waited least, since they limit the others."""
_LEAST_SHARE = 0.0005
_COMPUTING = frozenset(KIND_OF_COMPUTE.values())


def show_simulation(
    result: SimulatedRun, plan: Plan, console: Console, extent: str = "", unreached: Sequence[str] = ()
) -> None:
    """Prints the tables and the remarks; see `remarks` for the arguments."""
    console.print(_clusters(result, plan))
    console.print()
    console.print(_facts(result, plan))
    console.print()
    console.print(_stages(result))
    lag = "; lag: averaging" if len(plan.clusters) > 1 else ""
    words = f"input: another stage; window: latency; staleness: its limit{lag}."
    console.print(legend(f"Shares of the stage's time. {words}"))
    if len(result.stages) > MOST_ROWS:
        say(console, f"The {MOST_ROWS} busiest of {len(result.stages)} stages; --json has them all.")
    console.print()
    for line in remarks(result, plan, extent, unreached):
        say(console, line)


def remarks(result: SimulatedRun, plan: Plan, extent: str = "", unreached: Sequence[str] = ()) -> list[str]:
    """Returns the lines that say what the figures mean and how far to trust them.

    `extent` says why the run ended where it did; `unreached` names what of the scenario would have come later.
    """
    lines = [
        f"Simulated {duration(result.end_s)} in {duration(result.wall_s)}: {result.events:,} events,"
        f" {result.events_per_minute / 1e6:.1f} million a minute."
    ]
    if extent:
        lines.append(f"{result.samples:,} samples: {extent}.")
    if unreached:
        lines.append(
            f"WITHOUT EFFECT, for training ended after {duration(result.drain_s)}: {', '.join(unreached)} of the"
            " scenario. Simulate more samples or hours."
        )
    if (short := too_short(result, plan)) is not None:
        lines.append(f"Too short for a steady state: {short}. Simulate more samples or hours.")
    lines += [_lost_line(lost) for lost in result.clusters_lost[:MOST_ROWS]]
    if len(result.clusters_lost) > MOST_ROWS:
        lines.append(f"{len(result.clusters_lost) - MOST_ROWS} clusters more left; --json has them all.")
    return lines + [_again_line(each) for each in result.begun_anew] + _end_line(result, plan)


def _lost_line(lost: LostCluster) -> str:
    if lost.with_notice:
        why = f"with notice of {lost.node}" if lost.node else "to be planned anew"
        said = f"{lost.cluster} left {why} after {duration(lost.lost_s)}, with nothing lost."
    else:
        said = (
            f"{lost.cluster} LEFT THE RUN after {duration(lost.lost_s)}: nothing was heard of {lost.node} from"
            f" {duration(lost.silent_from_s)} on. {lost.samples:,} samples of it were in no average yet, and are lost."
        )
    if lost.back_s is None:
        return said
    return f"{said} It trained again after {duration(lost.back_s)}, on {', '.join(lost.nodes)}."


def _again_line(again: BegunAnew) -> str:
    how = "planned anew for the nodes that were there" if again.planned_anew else "by the same plan"
    if again.on_purpose:
        return (
            f"It was stopped after {duration(again.lost_s)}, since other clusters make more of the nodes that were"
            f" there, and began again after {duration(again.began_s)}."
        )
    return (
        f"NO CLUSTER WAS LEFT after {duration(again.lost_s)}: it began again after {duration(again.began_s)}, {how}."
        f" {again.samples:,} samples were in no checkpoint, and are lost."
    )


def _end_line(result: SimulatedRun, plan: Plan) -> list[str]:
    since_s = max((again.began_s for again in result.begun_anew), default=0.0)
    gone = {lost.cluster for lost in result.clusters_lost if lost.back_s is None and lost.lost_s >= since_s}
    if gone < result.clusters.keys():
        return []
    return ["THE RUN ENDED with its last cluster. `ravnest run --resume` goes on from its last checkpoint."]


def _clusters(result: SimulatedRun, plan: Plan) -> Table:
    table = Table("", "predicted", "simulated", "difference", title="Samples per second, in the steady state")
    for column in table.columns[1:]:
        column.justify = "right"
    known = too_short(result, plan) is None
    for cluster, predicted in zip(plan.clusters, plan.predicted.clusters, strict=True):
        # Where the run was planned anew, its clusters are others.
        if len(plan.clusters) <= MOST_ROWS and not any(again.planned_anew for again in result.begun_anew):
            _compare(table, cluster.name, predicted.samples_per_s, result.clusters[cluster.name], known=known)
    _compare(table, "fleet", plan.predicted.samples_per_s, result.samples_per_s, known=known)
    return table


def _compare(table: Table, name: str, predicted: float, simulated: float, *, known: bool) -> None:
    difference = f"{round(simulated / predicted - 1, 3) + 0.0:+.1%}" if known else "–"  # + 0.0: no -0.0 %
    table.add_row(escape(name), format_rate(predicted), format_rate(simulated) if known else "–", difference)


def _facts(result: SimulatedRun, plan: Plan) -> Table:
    table = Table(show_header=False)
    table.add_row("from start to end", f"{format_rate(result.overall_samples_per_s)} samples/s")
    whole = "" if result.clusters_lost else ", as nothing is lost"
    table.add_row("goodput: in the anchor at the end", f"{format_rate(result.goodput_per_s)} samples/s{whole}")
    total = sum(result.staleness.values())
    shares = ", ".join(f"{stale}: {count / total:.1%}" for stale, count in result.staleness.items()) if total else "–"
    table.add_row("staleness of gradients, in updates", shares)
    several = len(plan.clusters) > 1  # one averages with nobody: its rounds only commit
    if several and result.averaging_s is not None and result.longest_averaging_s is not None:
        table.add_row("rounds of averaging", f"{result.rounds}")
        table.add_row(
            "from opening to commit",
            f"{duration(result.averaging_s)}, at most {duration(result.longest_averaging_s)}"
            f" (planned: {round_times(plan.predicted)})",
        )
    averaged = f", {size(result.averaging_bytes)} by averaging" if several else ""
    table.add_row("sent", f"{size(result.pipeline_bytes)} by pipelines{averaged}")
    lost = sorted(result.lost.items(), key=lambda each: -abs(each[1]))
    words = ", ".join(f"{cause} {share:.1%}" for cause, share in lost if abs(share) >= _LEAST_SHARE)
    table.add_row("time of all stages lost to", words or "nothing")
    if result.stalls:
        table.add_row("stalls", str(result.stalls))
    return table


def _stages(result: SimulatedRun) -> Table:
    table = Table("stage", "node", "computes", "waits most for", title="Where each stage's time went, start to drain")
    table.columns[2].justify = "right"
    busiest = sorted(result.stages, key=lambda stage: -stage.utilisation)[:MOST_ROWS]
    for stage in [stage for stage in result.stages if stage in busiest]:
        total_s = sum(stage.seconds.values())
        causes = {cause: spent_s for cause, spent_s in stage.seconds.items() if cause in result.lost and spent_s > 0}
        worst = max(causes, key=lambda cause: causes[cause], default=None)
        waits = "–" if worst is None else f"{worst} {causes[worst] / total_s:.1%}"
        computes = sum(stage.seconds.get(kind, 0.0) for kind in _COMPUTING) / total_s if total_s > 0 else 0.0
        table.add_row(escape(stage.name), escape(stage.node), f"{computes:.1%}", waits)
    return table
