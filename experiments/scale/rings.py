"""Where flat rings stop scaling: one round's averaging over the number of members, against the time between rounds.

A ring passes 2(n − 1) hops one after another, so its time holds 2(n − 1) latencies: what bytes there are to send does
not grow with n, this does.
"""

from cluster_planner import Plan
from experiments.report import Claim, Panel, Part, Series, Table
from experiments.scale.fleets import SAMPLES_PER_CLUSTER, SEGMENT_BYTES, home_plan, hop_s
from ravnest.pipeline.virtual import VirtualRun
from ravnest.pipeline.virtual_plan import MOST_JUDGED, fleet_of_plan

SEED = 1
MEMBERS = (10, 30, 100, 300, 1000)
QUICK = (10, 30)
BEYOND = (3000, 10_000)
"""Members for which the formula is given alone: a round of 10,000 is 200 million messages."""
WITHIN = 0.25


def run(*, quick: bool) -> Part:
    """One round of each number of members, each a cluster of its own."""
    rows: list[tuple[int, float | None, float, float]] = []
    simulated: list[tuple[int, float]] = []
    told: list[tuple[int, float]] = []
    for members in QUICK if quick else MEMBERS:
        plan = home_plan(members, 1, SEED, samples_per_cluster=10**9)  # so that the only round is the last
        formula_s = by_formula(plan)
        measured_s = one_round_s(plan)
        simulated.append((members, measured_s))
        told.append((members, formula_s))
        rows.append((members, measured_s, formula_s, measured_s / between_s(plan)))
    for members in () if quick else BEYOND:
        plan = home_plan(members, 1, SEED)
        told.append((members, by_formula(plan)))
        rows.append((members, None, by_formula(plan), by_formula(plan) / between_s(plan)))
    offs = [
        abs(measured / formula - 1)
        for (members, measured), (_, formula) in zip(simulated, told, strict=False)
        if members > MOST_JUDGED
    ]
    over = next((members for members, *_, share in rows if share > 1), None)
    return Part(
        name="rings",
        title="Where flat rings stop scaling",
        claims=[
            Claim(
                "formula",
                "beyond 64 members a flat ring takes its slowest hop's time for the bytes and 2(n − 1) latencies",
                f"within {WITHIN:.0%}",
                f"at most {max(offs):.0%} off" if offs else "–",
                max(offs) <= WITHIN if offs else None,
            )
        ],
        tables=[
            Table(
                "One round of one segment",
                ("members", "simulated, s", "by formula, s", "part of the time between rounds"),
                rows,
            )
        ],
        panels=[
            Panel(
                "One round of one segment",
                "members of the ring",
                "seconds",
                [
                    Series("simulated", [m for m, _ in simulated], [s for _, s in simulated]),
                    Series("by formula", [m for m, _ in told], [s for _, s in told]),
                ],
                log_x=True,
                log_y=True,
            )
        ],
        notes=[
            f"A vector of {SEGMENT_BYTES // 10**6} MB; every member is a cluster of its own and makes "
            f"{SAMPLES_PER_CLUSTER} samples between two rounds. By formula: 2(n − 1)·(bytes / n / slowest hop's rate + "
            "mean latency and half of the jitter), with equal blocks; up to 64 members they are unequal, as in a run, "
            "where that is faster. "
            + (
                "No ring here takes as long as the time between rounds."
                if over is None
                else f"From {over} members on a round takes longer than the time between two: clusters wait."
            )
        ],
    )


def one_round_s(plan: Plan) -> float:
    """From the round's opening to its commit, when every member has made one update."""
    fleet = fleet_of_plan(plan)
    virtual = VirtualRun(fleet, traced=False)
    virtual.run(1)
    return virtual.rounds.committed_s[-1] - virtual.rounds.opened_s[-1]


def by_formula(plan: Plan) -> float:
    members = [cluster.stages[0].node for cluster in plan.clusters]
    latency_s, rate = hop_s(plan, members)
    jitter_s = plan.fleet.link(members[0], members[1]).jitter_s / 2
    return 2 * (len(members) - 1) * (SEGMENT_BYTES / len(members) / rate + latency_s + jitter_s)


def between_s(plan: Plan) -> float:
    """Seconds in which the fleet makes the samples of one round."""
    return SAMPLES_PER_CLUSTER * len(plan.clusters) / plan.predicted.samples_per_s
