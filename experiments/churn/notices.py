"""Nodes that go after 30 s of notice, simulated: how many samples are lost.

Every two minutes another node gives notice, is gone 30 s later, and is back a minute after that. Its cluster begins
nothing new, and hands on what it has made to another one, as soon as its stages rest: they have drained, or wait for a
round. A round that is quicker takes it. Then the cluster is out. One that is not out when its node goes loses what no
round has taken. Two fleets are asked: twenty rented machines in a data centre, and forty home machines in clusters of
four.
"""

import random

from cluster_planner import Plan, make_plan
from experiments.churn.fleets import model, rented_fleet, work
from experiments.harness.report import Claim, Part, Table
from experiments.scale.fleets import home_plan
from ravnest.simulator import Leave, Scenario, SimulatedRun, simulate

SEED = 1
EVERY_S, NOTICE_S, AWAY_S = 120.0, 30.0, 60.0


def measure(*, quick: bool) -> Part:
    """Ten nodes of each fleet, one after another, or with `quick` three of the home machines."""
    count = 3 if quick else 10
    plans = {"homes": home_plan(40, 4, SEED, samples_per_cluster=256, segment_bytes=2_000_000)}
    if not quick:
        names = [f"n{index}" for index in range(20)]
        plans = {
            "rented": make_plan(rented_fleet("p3", names), model(), work("p3"), job={}, job_file="generated")
        } | plans
    runs = {name: _run(plan, count) for name, plan in plans.items()}
    return Part(
        name="notices",
        title="Thirty seconds of notice",
        claims=[
            Claim(
                name,
                f"samples that are lost where {count} nodes go after {NOTICE_S:g} s of notice",
                "0",
                f"{sum(each.samples for each in run.clusters_lost)}",
                None if quick else _nothing_lost(run, count),
            )
            for name, run in runs.items()
        ],
        tables=[
            Table(
                f"{count} nodes of each fleet go, one every {EVERY_S:g} s",
                (
                    "fleet",
                    "a round takes, s",
                    "clusters that left with nothing lost",
                    "lost with their node",
                    "samples lost",
                    "until a cluster was out, median, s",
                    "the longest, s",
                ),
                [(name, *_row(run, plans[name], count)) for name, run in runs.items()],
            )
        ],
        notes=[" ".join((__doc__ or "").split("\n\n")[1].split())],
    )


def _leaves(plan: Plan, count: int) -> tuple[Leave, ...]:
    training = sorted(stage.node for cluster in plan.clusters for stage in cluster.stages)
    names = random.Random(f"churn/{SEED}").sample(training, count)
    return tuple(Leave(name, EVERY_S * (i + 1), NOTICE_S, back_after_s=AWAY_S) for i, name in enumerate(names))


def _run(plan: Plan, count: int) -> SimulatedRun:
    return simulate(plan, Scenario(leaves=_leaves(plan, count), plans_anew=False), seconds=EVERY_S * (count + 1))


def _nothing_lost(run: SimulatedRun, count: int) -> bool:
    return len(run.clusters_lost) >= count and not any(each.samples for each in run.clusters_lost)


def _row(run: SimulatedRun, plan: Plan, count: int) -> tuple[str | int | float | None, ...]:
    asked_s = {leave.node: leave.at_s for leave in _leaves(plan, count)}
    out = sorted(each.lost_s - asked_s[each.node] for each in run.clusters_lost if each.node in asked_s)
    whole = sum(each.with_notice for each in run.clusters_lost)
    return (
        None if run.averaging_s is None else round(run.averaging_s, 1),
        whole,
        len(run.clusters_lost) - whole,
        sum(each.samples for each in run.clusters_lost),
        round(out[len(out) // 2], 1) if out else None,
        round(out[-1], 1) if out else None,
    )
