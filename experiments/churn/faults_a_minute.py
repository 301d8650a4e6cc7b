"""Goodput of twenty nodes of which one loses its process every minute, simulated.

Each minute the process of another node ends, chosen by a seeded generator. Its end is told within 1 s, the node stays,
and processes take 15 s to start. Goodput is compared with the same plan undisturbed. Three runs are measured: one whose
plan knows nothing of faults, one whose nodes state `mtbf_hours` of a twentieth of the faults each, and one that also
averages four times as often, which is what a user can do about faults: a lost cluster loses what it made since the
last round.
"""

import random
from collections.abc import Sequence
from dataclasses import replace

from cluster_planner import make_plan
from experiments.churn.fleets import ROUNDS_SAVED, model, rented_fleet, work
from experiments.harness.report import Claim, Panel, Part, Series, Table
from ravnest.simulator import Death, Scenario, SimulatedRun, simulate

TARGET = 0.95
NODES, EVERY_S, SEED = 20, 60.0, 1
TOLD_S = 1.0
OFTEN = 512
"""Samples between two rounds of the run that averages often: some 10 s of the fleet."""


def faults(names: Sequence[str], seconds: float) -> tuple[Death, ...]:
    """A fault every minute, of a node by chance, which is there again at once."""
    chance = random.Random(f"churn/{SEED}")
    return tuple(
        Death(chance.choice(names), EVERY_S * (number + 1), TOLD_S, back_after_s=TOLD_S)
        for number in range(int(seconds / EVERY_S) - 1)
    )


def measure(*, quick: bool) -> Part:
    """An hour for each run, or with `quick` five minutes of one."""
    seconds = 300.0 if quick else 3600.0
    names = [f"n{index}" for index in range(NODES)]
    rows, claims, lines = [], [], []
    often, usual = replace(work("p3"), average_every=OFTEN), work("p3")
    runs = [
        ("averaged often", NODES * EVERY_S, often),
        ("mtbf_hours stated", NODES * EVERY_S, usual),
        ("nothing stated", None, usual),
    ]
    for title, mtbf_s, job in runs[: 1 if quick else 3]:
        plan = make_plan(
            rented_fleet("p3", names, mtbf_s),
            model(),
            job,
            job={"evaluate_every": ROUNDS_SAVED * job.average_every},
            job_file="generated",
        )
        free = simulate(plan, seconds=seconds)
        run = simulate(plan, Scenario(deaths=faults(names, seconds)), seconds=seconds)
        share = run.goodput_per_s / free.goodput_per_s
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
        rows.append(
            (title, job.average_every, stages, free.goodput_per_s, run.goodput_per_s, f"{share:.1%}", *_losses(run))
        )
        minutes = [at_s / 60 for at_s, _ in run.over_time]
        lines.append(Series(title, minutes, [rate for _, rate in run.over_time]))
    columns = ("run", "average_every", "stages", "undisturbed, samples/s", "goodput, samples/s", "share")
    more = ("clusters lost", "samples lost", "seconds to train again, median", "the longest", "no cluster left")
    return Part(
        name="goodput",
        title="One fault a minute",
        claims=claims,
        tables=[Table(f"{NODES} nodes, {seconds / 60:g} minutes", (*columns, *more), rows)],
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
