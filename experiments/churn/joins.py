"""Twenty nodes that join at once while the others average, simulated.

The run has forty home machines by plan, in clusters of four. Five clusters are lost early and away; then all of their
nodes are there again in the same moment, while a round is under way. That is done in eight runs, in another round each,
since one update of a cluster is a tenth of what the others make meanwhile. What is asked: do all five train again, and
what do the others lose meanwhile, against the same time without joiners?
"""

from bisect import bisect_right

from experiments.harness.report import Claim, Panel, Part, Series, Table
from experiments.scale.fleets import home_plan
from ravnest.simulator import Death, Scenario, SimulatedRun, simulate

TARGET = 0.95
NODES, STAGES, SEED = 40, 4, 1
LOST_S = 60.0
MOMENTS, AFTER_S = 8, 120.0
"""How many rounds are joined, each in a run of its own, and how long the last of them goes on."""


def measure(*, quick: bool) -> Part:
    """Runs with joiners, each in the middle of another round, and one whose lost clusters stay away."""
    plan = home_plan(NODES, STAGES, SEED, samples_per_cluster=256, segment_bytes=2_000_000)
    gone = plan.clusters[len(plan.clusters) // 2 :]
    nodes = [stage.node for cluster in gone for stage in cluster.stages]
    away = simulate(plan, _absence(nodes, None), seconds=600.0)
    later = [(opened_s, committed_s) for opened_s, committed_s in away.rounds_s if opened_s > 2 * LOST_S]
    moments = [(opened_s + committed_s) / 2 for opened_s, committed_s in later[: 1 if quick else MOMENTS]]
    seconds = moments[-1] + AFTER_S
    alone = simulate(plan, _absence(nodes, None), seconds=seconds)
    runs = [simulate(plan, _absence(nodes, joins_s - LOST_S), seconds=seconds) for joins_s in moments]
    trained, firsts, lasts, made, without = [], [], [], 0.0, 0.0
    for joins_s, run in zip(moments, runs, strict=True):
        back = [each.back_s for each in run.clusters_lost if each.back_s is not None]
        until_s = max(back, default=seconds)
        trained.append(len(back))
        firsts.append(min(back, default=seconds) - joins_s)
        lasts.append(until_s - joins_s)
        made += _made(run, joins_s, until_s)
        without += _made(alone, joins_s, until_s)
    share = made / without
    return Part(
        name="joins",
        title="Twenty nodes join at once",
        claims=[
            Claim(
                "none refused",
                "clusters of the joiners that train, the fewest",
                f"all {len(gone)}",
                f"{min(trained)}",
                None if quick else min(trained) == len(gone),
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
                    ("runs with joiners", len(moments)),
                    ("joined after, s", f"{moments[0]:.0f} to {moments[-1]:.0f}"),
                    ("first cluster trains, s later, the longest", round(max(firsts), 1)),
                    ("last cluster trains, s later, the longest", round(max(lasts), 1)),
                    ("others, samples/s meanwhile", made / sum(lasts)),
                    ("others without joiners, samples/s", without / sum(lasts)),
                    ("clusters that trained on", len(plan.clusters) - len(gone)),
                ],
            )
        ],
        panels=[
            Panel(
                "joiners",
                "seconds",
                "samples/s",
                [
                    Series("with joiners", *_curve(runs[0])),
                    Series("without", *_curve(alone)),
                ],
            )
        ],
        notes=[" ".join((__doc__ or "").split("\n\n")[1].split())],
    )


def _absence(nodes: list[str], back_after_s: float | None) -> Scenario:
    deaths = tuple(Death(node, LOST_S, 1.0, back_after_s) for node in nodes)
    return Scenario(deaths=deaths, plans_anew=False)  # what is asked is what joiners cost, not which plan is best


def _curve(run: SimulatedRun) -> tuple[list[float], list[float]]:
    return [at_s for at_s, _ in run.over_time], [rate for _, rate in run.over_time]


def _made(run: SimulatedRun, from_s: float, until_s: float) -> float:
    """Return the samples of the whole fleet between two moments before which no joiner trains."""
    ends = [at_s for at_s, _ in run.over_time]
    span_s = ends[0]
    total = 0.0
    for index in range(bisect_right(ends, from_s), len(ends)):
        start_s = ends[index] - span_s
        total += run.over_time[index][1] * max(0.0, min(until_s, ends[index]) - max(from_s, start_s))
    return total
