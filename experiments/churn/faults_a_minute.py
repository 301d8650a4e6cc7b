"""Goodput of twenty nodes of which one loses its process every minute, simulated.

Each minute the process of another node ends, chosen by a seeded generator. Its end is told within 1 s, and the node
stays. A process takes 15 s to start, and 2 s where a ready one waits. Goodput is compared with the same plan
undisturbed, and with all twenty nodes training undisturbed. Four runs are measured: one as it is; one that averages
eight times as often, which is what a user can do about faults, since a lost cluster loses what it made since the last
round; the same without ready processes; and the same with four of the nodes kept for losses. The planner lets them
shadow the stages for which that pays most, as many as their memory holds.
"""

import random
from collections.abc import Sequence
from dataclasses import replace

from cluster_planner import Plan, Spare, Workload, make_plan
from cluster_planner.advice.warm_spares import with_warm_spares
from experiments.churn.fleets import ROUNDS_SAVED, model, rented_fleet, work
from experiments.churn.lost_updates import missing, watched
from experiments.harness.report import Claim, Panel, Part, Series, Table
from ravnest.simulator import Kill, Scenario, SimulatedRun, simulate

TARGET = 0.95
NODES, EVERY_S, SEED = 20, 60.0, 1
TOLD_S = 1.0
KEPT = 4
"""Nodes that one of the runs keeps as warm spares."""
OFTEN = 256
"""Samples between two rounds of the run that averages often: some 5 s of the fleet."""


def faults(names: Sequence[str], seconds: float) -> tuple[Kill, ...]:
    """A fault every minute, on a node by chance."""
    chance = random.Random(f"churn/{SEED}")
    return tuple(
        Kill(chance.choice(names), EVERY_S * (number + 1), TOLD_S) for number in range(int(seconds / EVERY_S) - 1)
    )


def _plan(names: Sequence[str], job: Workload, kept: int, *, ready: bool = True) -> Plan:
    """The plan of a run for these nodes, the last so many of which are kept as warm spares. `ready`: whether ready
    processes are kept beside stages."""
    every_s = len(names) * EVERY_S
    plan = make_plan(
        rented_fleet("p3", names[: len(names) - kept], every_s),
        model(),
        job,
        job={"evaluate_every": ROUNDS_SAVED * job.average_every, "ready_processes": "auto" if ready else "never"},
        job_file="generated",
    )
    spares = (*plan.spares, *(Spare(name, "it is kept for losses") for name in names[len(names) - kept :]))
    return with_warm_spares(replace(plan, fleet=rented_fleet("p3", names, every_s), spares=spares))


def measure(*, quick: bool) -> Part:
    """Twenty minutes for each run, or with `quick` five minutes of one."""
    seconds = 300.0 if quick else 1200.0
    names = [f"n{index}" for index in range(NODES)]
    rows, claims, lines = [], [], []
    often, usual = replace(work("p3"), average_every=OFTEN), work("p3")
    runs = [
        ("averaged often", often, 0, True),
        ("often, no ready processes", often, 0, False),
        ("often, warm spares", often, KEPT, True),
        ("as it is", usual, 0, True),
    ]
    best, phases = 0.0, []
    for title, job, spares, ready in runs[: 1 if quick else None]:
        plan = _plan(names, job, spares, ready=ready)
        free = simulate(plan, seconds=seconds)
        disturbed = Scenario(kills=faults(names, seconds))
        run = simulate(plan, disturbed, seconds=seconds)
        share = run.goodput_per_s / free.goodput_per_s
        best = max(best, free.goodput_per_s)
        claims.append(
            Claim(
                title,
                f"goodput of {NODES} nodes with one fault a minute, of the same without",
                f"at least {TARGET:.0%}",
                f"{share:.1%}",
                None if quick else share >= TARGET,
            )
        )
        stages = ", ".join(str(len(cluster.stages)) for cluster in plan.clusters)
        shadowed = sum(len(spare.shadows) for spare in plan.spares)
        made = free.goodput_per_s, run.goodput_per_s, f"{share:.1%}", f"{run.goodput_per_s / best:.1%}"
        rows.append((title, job.average_every, stages, shadowed, *made, *_losses(run)))
        missed = missing(watched(plan, Scenario(), seconds)[0], *watched(plan, disturbed, seconds), seconds)
        phases += [(title, phase, f"{part:.1%}") for phase, part in missed.items()]
        unkept = sum(each.samples for each in run.clusters_lost) / (free.goodput_per_s * free.end_s)
        phases.append((title, "made, and not averaged when the cluster was lost", f"{unkept:.1%}"))
        minutes = [at_s / 60 for at_s, _ in run.over_time]
        lines.append(Series(title, minutes, [rate for _, rate in run.over_time]))
    columns = ("run", "average_every", "stages", "stages shadowed", "undisturbed, samples/s", "goodput, samples/s")
    columns += ("share", "of all nodes undisturbed")
    more = ("clusters lost", "samples lost", "seconds to train again, median", "the longest", "no cluster left")
    return Part(
        name="goodput",
        title="One fault a minute",
        claims=claims,
        tables=[
            Table(f"{NODES} nodes, {seconds / 60:g} minutes", (*columns, *more), rows),
            Table("What is missing of the undisturbed run", ("run", "when", "share"), phases),
        ],
        panels=[Panel("one fault a minute", "minutes", "samples/s", lines)],
        notes=[" ".join((__doc__ or "").split("\n\n")[1].split())],
    )


def _losses(run: SimulatedRun) -> tuple[int | float | None, ...]:
    took = sorted(each.back_s - each.lost_s for each in run.clusters_lost if each.back_s is not None)
    return (
        len(run.clusters_lost),
        sum(each.samples for each in run.clusters_lost),
        round(took[len(took) // 2], 1) if took else None,
        round(took[-1], 1) if took else None,
        len(run.begun_anew),
    )
