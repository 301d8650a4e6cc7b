"""Fleets of 10 to 10,000 home machines, simulated: samples/s, averaging and staleness against the plan's prediction.

While clusters wait for averaging, a round is under way for longer than it takes on links of its own, and by how much
follows from what is predicted (cluster_planner/predict/steady_state.py). With E samples to a round, R samples/s without
averaging and
P with it, clusters train for t = E / R, and rounds are I = E / P apart. Round n + max_lag opens t after all went on,
which is I − t before the commit of round n lets them go on again, and commits max_lag intervals after that one:

    under way = (I − t) + max_lag · I

Where nobody waits (I = t) the prediction says no more than that a round is done within max_lag · I.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from cluster_planner import Plan, SpanCosts, predict
from experiments.harness.report import Claim, Panel, Part, Series, Table
from experiments.scale.fleets import home_plan
from experiments.scale.rings import one_round_s
from ravnest.simulator import Scenario, SimulatedRun, simulate
from ravnest.simulator.fleet import fleet_of_plan

SEED = 1
JITTER = 0.1
WITHIN = 0.05
AVERAGING_WITHIN = 0.25
"""Of the prediction, which knows no jitter, and takes all clusters to stop at once."""
NEVER = 10**9
"""Samples per cluster to a round: none before the last."""


@dataclass(frozen=True)
class Size:
    """`intervals`: how long it is simulated, until the run is told to stop, in predicted times between two rounds."""

    nodes: int
    stages: int
    intervals: float


@dataclass(frozen=True)
class Expected:
    """What a plan predicts: samples/s without averaging and with it, and the seconds from one round to the next, of a
    round under way (None: nobody waits for it) and of one that has all links to itself.
    """

    unaveraged_per_s: float
    samples_per_s: float
    interval_s: float
    under_way_s: float | None
    alone_s: float
    max_staleness: int


@dataclass(frozen=True)
class Found:
    """What came of one size. The row lasts until before its first round where `interval_s` is None: then `rate_per_s`
    is to be compared with what is predicted without averaging. `alone_s`: of a round when nothing else is sent.
    """

    size: Size
    result: SimulatedRun
    expected: Expected
    rate_per_s: float
    interval_s: float | None
    under_way_s: float | None
    alone_s: float

    @property
    def predicted_per_s(self) -> float:
        return self.expected.unaveraged_per_s if self.interval_s is None else self.expected.samples_per_s


SIZES = (Size(10, 5, 20.5), Size(100, 10, 8.5), Size(1000, 10, 5.5), Size(10_000, 40, 0.4))
"""Some 4·10⁷ events in all. The largest fleet makes 6·10⁴ a second and 10⁷ a round: five intervals of it are 1.5·10⁸,
an hour of one core."""
QUICK = (Size(10, 5, 8.5), Size(100, 10, 5.5))


def run(*, quick: bool) -> Part:
    """Simulate each size once."""
    found = [simulated(size) for size in (QUICK if quick else SIZES)]
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
                    "rounds while training",
                    "between rounds, s",
                    "predicted, s",
                    "a round under way, s",
                    "predicted, s",
                    "alone on its links, s",
                    "predicted, s",
                    "events",
                    "this machine, s",
                ),
                [_row(each) for each in found],
            )
        ],
        panels=[
            Panel(
                "Samples/s of the fleet",
                "nodes",
                "samples/s",
                [
                    Series("simulated", [each.size.nodes for each in found], [each.rate_per_s for each in found]),
                    Series("predicted", [each.size.nodes for each in found], [each.predicted_per_s for each in found]),
                ],
                log_x=True,
                log_y=True,
            )
        ],
        notes=[
            f"Home machines from a seed (experiments/scale/fleets.py), computations that vary by {JITTER:.0%}, the "
            "grouping generated and not planned: clusters of one region and like speed, one unit a stage. samples/s "
            "are over whole rounds, from the second commit to the last before the drain: clusters wait before each, so "
            "a part of one would count too few waits or too many. A row without rounds while training ends before its "
            "first: its samples/s, from a fifth of the time on, are beside those predicted without averaging, and "
            "its one round is the last one, when it has drained. Rounds under way are all but the first, during which "
            "clusters do not wait for another; what is predicted of them is derived in experiments/scale/sizes.py."
        ],
    )


def expected_of(plan: Plan) -> Expected:
    """Every cluster of `plan` makes an update or more to a round."""
    work = plan.workload
    unaveraged = predict(plan.fleet, SpanCosts(plan.costs, work), plan.clusters, ()).prediction.samples_per_s
    predicted = plan.predicted
    trained_s, interval_s = work.average_every / unaveraged, work.average_every / predicted.samples_per_s
    waits = interval_s > trained_s * (1 + 1e-9)
    return Expected(
        unaveraged_per_s=unaveraged,
        samples_per_s=predicted.samples_per_s,
        interval_s=interval_s,
        under_way_s=interval_s - trained_s + work.max_lag * interval_s if waits else None,
        alone_s=predicted.averaging_s,
        max_staleness=work.max_staleness,
    )


def simulated(size: Size) -> Found:
    """One size, for as many intervals as it says."""
    plan = home_plan(size.nodes, size.stages, SEED)
    expected = expected_of(plan)
    seconds = size.intervals * expected.interval_s
    result = simulate(plan, Scenario(compute_jitter=JITTER), seconds=seconds, seed=SEED)
    if result.rounds == 1:  # the last one, when all had drained
        opened_s, committed_s = result.rounds_s[0]
        return found_of(size, result, expected, plan.workload.average_every, committed_s - opened_s)
    alone = one_round_s(fleet_of_plan(home_plan(size.nodes, size.stages, SEED, samples_per_cluster=NEVER)))
    return found_of(size, result, expected, plan.workload.average_every, alone)


def found_of(size: Size, result: SimulatedRun, expected: Expected, average_every: int, alone_s: float) -> Found:
    """Reads off the rounds that were committed while all trained, from the second on."""
    done = [(opened_s, committed_s) for opened_s, committed_s in result.rounds_s if committed_s <= result.drain_s]
    settled = done[1:]  # clusters wait for the first one at its end only
    apart = [later - earlier for (_, earlier), (_, later) in pairwise(settled)]
    took = [committed_s - opened_s for opened_s, committed_s in settled]
    interval_s = sum(apart) / len(apart) if apart else None
    return Found(
        size=size,
        result=result,
        expected=expected,
        rate_per_s=result.samples_per_s if interval_s is None else average_every / interval_s,
        interval_s=interval_s,
        under_way_s=sum(took) / len(took) if took else None,
        alone_s=alone_s,
    )


def claims_of(found: Sequence[Found]) -> list[Claim]:
    """Over all sizes, each by the size that is worst."""
    rates = {each.size.nodes: each.rate_per_s / each.predicted_per_s - 1 for each in found}
    under_way = {
        each.size.nodes: each.under_way_s / each.expected.under_way_s - 1
        for each in found
        if each.under_way_s is not None and each.expected.under_way_s is not None
    }
    alone = {each.size.nodes: each.alone_s / each.expected.alone_s - 1 for each in found}
    stalest = max(found, key=lambda each: max(each.result.staleness) - each.expected.max_staleness)
    bound, most = stalest.expected.max_staleness, max(stalest.result.staleness)
    return [
        _agrees("predicted", "simulated samples/s agree with the plan's prediction", rates, WITHIN),
        _agrees(
            "under way",
            "while clusters wait for averaging, a round takes from opening to commit what follows from the prediction",
            under_way,
            AVERAGING_WITHIN,
        ),
        _agrees(
            "averaging",
            "a round on links that nothing else uses takes what the plan predicts",
            alone,
            AVERAGING_WITHIN,
        ),
        Claim(
            "staleness",
            "no gradient is staler than the plan's max_staleness",
            f"at most {bound}",
            f"{most} updates",
            most <= bound,
        ),
    ]


def _agrees(name: str, statement: str, off: Mapping[int, float], within: float) -> Claim:
    """`off`: by nodes, how far simulated is from predicted."""
    worst = max(off, key=lambda nodes: abs(off[nodes]), default=None)
    sizes = ", ".join(f"{nodes:,} nodes {share:+.1%}" for nodes, share in off.items())
    held = None if worst is None else abs(off[worst]) <= within
    return Claim(name, statement, f"within {within:.0%} at every size", sizes or "no round", held)


def _row(found: Found) -> tuple[str | int | float | None, ...]:
    size, result, expected = found.size, found.result, found.expected
    total = sum(result.staleness.values())
    return (
        size.nodes,
        size.nodes // size.stages,
        round(result.end_s),
        found.rate_per_s,
        found.predicted_per_s,
        f"{sum(stage.utilisation for stage in result.stages) / len(result.stages):.0%}",
        " / ".join(f"{result.staleness.get(stale, 0) / total:.0%}" for stale in (0, 1)),
        sum(committed_s <= result.drain_s for _, committed_s in result.rounds_s),
        found.interval_s,
        None if found.interval_s is None else expected.interval_s,
        found.under_way_s,
        None if found.under_way_s is None else expected.under_way_s,
        found.alone_s,
        expected.alone_s,
        result.events,
        round(result.wall_s, 1),
    )
