"""Fleets of 10 to 10,000 home machines, simulated: samples/s, averaging and staleness against the plan's prediction."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from experiments.report import Claim, Panel, Part, Series, Table
from experiments.scale.fleets import home_plan
from ravnest.simulation import Scenario, Simulated, simulate

SEED = 1
JITTER = 0.1
WITHIN = 0.05
AVERAGING_WITHIN = 0.25
"""Of the prediction, which knows no jitter, and averages on links that nothing else uses."""


@dataclass(frozen=True)
class Size:
    """`seconds`: of virtual time, until the run is told to stop."""

    nodes: int
    stages: int
    seconds: float


Found = tuple[Size, Simulated, float, float, int]
"""What came, and of the plan: samples/s, seconds of a round, and max_staleness."""

SIZES = (Size(10, 5, 7200.0), Size(100, 10, 3600.0), Size(1000, 10, 600.0), Size(10_000, 40, 240.0))
"""Some 3·10⁷ events in all, of which the last round of the largest fleet is two fifths."""
QUICK = (Size(10, 5, 300.0), Size(100, 10, 60.0))


def run(*, quick: bool) -> Part:
    """Simulate each size once."""
    found: list[Found] = []
    for size in QUICK if quick else SIZES:
        plan = home_plan(size.nodes, size.stages, SEED)
        result = simulate(plan, Scenario(compute_jitter=JITTER), seconds=size.seconds, seed=SEED)
        bound = plan.workload.max_staleness
        found.append((size, result, plan.predicted.samples_per_s, plan.predicted.averaging_s, bound))
    return Part(
        name="sizes",
        title="Fleets of 10 to 10,000 nodes",
        claims=claims_of(found),
        tables=[
            Table(
                "Simulated against predicted",
                (
                    "nodes",
                    "clusters",
                    "simulated, s",
                    "samples/s",
                    "predicted",
                    "mean utilisation",
                    "staleness 0 / 1",
                    "rounds",
                    "averaging, s",
                    "alone on its links, predicted, s",
                    "events",
                    "this machine, s",
                ),
                [_row(*each) for each in found],
            )
        ],
        panels=[
            Panel(
                "Samples/s of the fleet",
                "nodes",
                "samples/s",
                [
                    Series("simulated", [s.nodes for s, *_ in found], [r.samples_per_s for _, r, *_ in found]),
                    Series("predicted", [s.nodes for s, *_ in found], [p for _, _, p, *_ in found]),
                ],
                log_x=True,
                log_y=True,
            )
        ],
        notes=[
            f"Home machines from a seed (experiments/scale/fleets.py), computations that vary by {JITTER:.0%}, the "
            "grouping generated and not planned: clusters of one region and like speed, one unit a stage. The largest "
            "fleet makes one round only, the last one, when it has drained. samples/s are of the steady state, from a "
            "fifth of the time on."
        ],
    )


def claims_of(found: Sequence[Found]) -> list[Claim]:
    """Over all sizes, each by the size that is worst."""
    rates = {size.nodes: result.samples_per_s / predicted - 1 for size, result, predicted, _, _ in found}
    rounds = {
        size.nodes: result.averaging_s / averaging_s - 1
        for size, result, _, averaging_s, _ in found
        if result.averaging_s is not None
    }
    stalest = max(found, key=lambda each: max(each[1].staleness) - each[4])
    return [
        _agrees("predicted", "simulated samples/s agree with the plan's prediction", rates, WITHIN),
        _agrees(
            "averaging",
            "a round of averaging, from opening to commit, takes what the plan predicts",
            rounds,
            AVERAGING_WITHIN,
        ),
        Claim(
            "staleness",
            "no gradient is staler than the plan's max_staleness",
            f"at most {stalest[4]}",
            f"{max(stalest[1].staleness)} updates",
            max(stalest[1].staleness) <= stalest[4],
        ),
    ]


def _agrees(name: str, statement: str, off: Mapping[int, float], within: float) -> Claim:
    """`off`: by nodes, how far simulated is from predicted."""
    worst = max(off, key=lambda nodes: abs(off[nodes]), default=None)
    sizes = ", ".join(f"{nodes:,} nodes {share:+.1%}" for nodes, share in off.items())
    held = None if worst is None else abs(off[worst]) <= within
    return Claim(name, statement, f"within {within:.0%} at every size", sizes or "no round", held)


def _row(
    size: Size, result: Simulated, predicted: float, averaging_s: float, _: int
) -> tuple[str | int | float | None, ...]:
    total = sum(result.staleness.values())
    return (
        size.nodes,
        size.nodes // size.stages,
        round(result.end_s),
        result.samples_per_s,
        predicted,
        f"{sum(stage.utilisation for stage in result.stages) / len(result.stages):.0%}",
        " / ".join(f"{result.staleness.get(stale, 0) / total:.0%}" for stale in (0, 1)),
        result.rounds,
        result.averaging_s,
        averaging_s,
        result.events,
        round(result.wall_s, 1),
    )
