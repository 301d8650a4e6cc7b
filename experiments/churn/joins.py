"""Twenty nodes that join at once while the others average, simulated.

The run has forty home machines by plan, in clusters of four. Five clusters are lost early and away; then all of their
nodes are there again in the same moment, while a round is under way. What is asked: do all five train again, and what
do the others lose meanwhile, against the same time without joiners?
"""

from bisect import bisect_right

from experiments.harness.report import Claim, Panel, Part, Series, Table
from experiments.scale.fleets import home_plan
from ravnest.simulator import Death, Scenario, SimulatedRun, simulate

TARGET = 0.95
NODES, STAGES, SEED = 40, 4, 1
LOST_S = 60.0


def measure(*, quick: bool) -> Part:
    """One run with joiners, and one whose lost clusters stay away."""
    plan = home_plan(NODES, STAGES, SEED, samples_per_cluster=256, segment_bytes=2_000_000)
    gone = plan.clusters[len(plan.clusters) // 2 :]
    nodes = [stage.node for cluster in gone for stage in cluster.stages]
    away = simulate(plan, _absence(nodes, None), seconds=600.0)
    later = [(opened_s, committed_s) for opened_s, committed_s in away.rounds_s if opened_s > 2 * LOST_S]
    opened_s, committed_s = later[0]
    joins_s = (opened_s + committed_s) / 2
    seconds = joins_s + (120.0 if quick else 900.0)
    alone = simulate(plan, _absence(nodes, None), seconds=seconds)
    run = simulate(plan, _absence(nodes, joins_s - LOST_S), seconds=seconds)
    back = [each.back_s for each in run.clusters_lost if each.back_s is not None]
    until_s = max(back, default=seconds)
    others = [cluster.name for cluster in plan.clusters if cluster not in gone]
    share = _made(run, joins_s, until_s) / _made(alone, joins_s, until_s)
    return Part(
        name="joins",
        title="Twenty nodes join at once",
        claims=[
            Claim(
                "none refused",
                "clusters of the joiners that train",
                f"all {len(gone)}",
                f"{len(back)}",
                None if quick else len(back) == len(gone),
            ),
            Claim(
                "others",
                "what the others make until the last joiner trains, of what they make without joiners",
                f"at least {TARGET:.0%}",
                f"{share:.1%}",
                None if quick else share >= TARGET,
            ),
        ],
        tables=[
            Table(
                f"{len(nodes)} of {NODES} nodes join in the middle of a round",
                ("", "value"),
                [
                    ("joined after, s", round(joins_s, 1)),
                    ("first cluster trains, s later", round(min(back) - joins_s, 1) if back else None),
                    ("last cluster trains, s later", round(until_s - joins_s, 1) if back else None),
                    ("others, samples/s meanwhile", _made(run, joins_s, until_s) / max(1e-9, until_s - joins_s)),
                    (
                        "others without joiners, samples/s",
                        _made(alone, joins_s, until_s) / max(1e-9, until_s - joins_s),
                    ),
                    ("clusters that trained on", len(others)),
                ],
            )
        ],
        panels=[
            Panel(
                "joiners",
                "seconds",
                "samples/s",
                [
                    Series("with joiners", [at_s for at_s, _ in run.over_time], [rate for _, rate in run.over_time]),
                    Series("without", [at_s for at_s, _ in alone.over_time], [rate for _, rate in alone.over_time]),
                ],
            )
        ],
        notes=[" ".join((__doc__ or "").split("\n\n")[1].split())],
    )


def _absence(nodes: list[str], back_after_s: float | None) -> Scenario:
    return Scenario(deaths=tuple(Death(node, LOST_S, 1.0, back_after_s) for node in nodes))


def _made(run: SimulatedRun, from_s: float, until_s: float) -> float:
    """Return the samples of the whole fleet between two moments before which no joiner trains."""
    ends = [at_s for at_s, _ in run.over_time]
    span_s = ends[0]
    total = 0.0
    for index in range(bisect_right(ends, from_s), len(ends)):
        start_s = ends[index] - span_s
        total += run.over_time[index][1] * max(0.0, min(until_s, ends[index]) - max(from_s, start_s))
    return total
