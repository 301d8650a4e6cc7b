"""Part `neighbours`: is the planner's number of clusters k right? Its plan beside the best ones with k − 1 and k + 1.

Decides the measure. It is the planner's objective (cluster_planner/predict/objective.py), with what the run itself has
shown in
the place of what was predicted: each cluster's samples/s, and its gradients' mean staleness τ:

    Σ over clusters of samples/s / (1 + STALENESS_COST · τ) · averaging_factor(clusters)

What a round costs in samples/s is in the rates. What it costs in learning to have more clusters, or staler gradients,
no run of half a minute shows: the factors are the objective's own assumptions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from cluster_planner import Plan, averaging_factor
from cluster_planner.predict.objective import STALENESS_COST
from experiments.harness.report import Cell, Claim, Panel, Part, Series, Table
from experiments.plan_quality.home_plans import plan_of, with_clusters
from experiments.plan_quality.homes import DIVISIBLE, homes
from experiments.plan_quality.rehearsed import QUICK_SECONDS, SECONDS, late_share
from experiments.plan_quality.rehearsing import Made, rehearsed, simulated

SEED = 3
"""With it the planner's k has both neighbours in every fleet: others often get as many clusters as there can be."""
NOISE = 0.02
"""By so much less than the best is within noise: what rehearsals of one plan differ by."""
QUICK_RUNS = 2


@dataclass(frozen=True)
class Choice:
    """One fleet's plan with one number of clusters. `rehearsed`: why it failed, where it did."""

    fleet: str
    words: str
    is_planners: bool
    plan: Plan
    simulated: Made
    rehearsed: Made | str

    @property
    def clusters(self) -> int:
        return len(self.plan.clusters)

    def worth(self, made: Made | str) -> float | None:
        """The measure, of a run of this plan."""
        if isinstance(made, str):
            return None
        counted = sum(rate / (1.0 + STALENESS_COST * stale) for rate, stale in made.clusters)
        return counted * averaging_factor(self.clusters, self.plan.workload)


def measure(*, quick: bool) -> Part:
    """Plan, simulate and rehearse, one after another."""
    seconds = QUICK_SECONDS if quick else SECONDS
    choices = []
    with TemporaryDirectory(prefix="plan-quality-") as name:
        for home in homes(SEED, DIVISIBLE, "k")[: 1 if quick else len(DIVISIBLE)]:
            best = plan_of(home)
            k = len(best.clusters)
            others = [with_clusters(best, count, home.least_stages) for count in (k - 1, k + 1) if count >= 1]
            plans = [best, *(plan for plan in others if plan is not None)]
            for plan in plans[: QUICK_RUNS if quick else None]:
                path = Path(name) / f"{home.name}-{len(plan.clusters)}.yaml"
                came = rehearsed(plan, path, seconds)
                choices.append(Choice(home.name, home.words, plan is best, plan, simulated(plan), came))
    return part(choices, seconds)


def part(choices: Sequence[Choice], seconds: float) -> Part:
    """Judged. Pure."""
    fleets = list(dict.fromkeys(choice.fleet for choice in choices))
    return Part(
        name="neighbours",
        title="The planner's number of clusters against one less and one more",
        claims=[
            _best("rehearsed", choices, fleets, [choice.worth(choice.rehearsed) for choice in choices]),
            _best("simulated", choices, fleets, [choice.worth(choice.simulated) for choice in choices]),
        ],
        tables=[_table(choices)],
        panels=[_panel(choices)],
        notes=[
            "Worth: the planner's objective, with each cluster's samples/s and the mean staleness of its gradients as "
            f"the run has shown them: Σ samples/s / (1 + {STALENESS_COST:g}·τ) · averaging factor of the number of "
            "clusters. Samples/s contain what rounds take of uplinks; the two factors, what staleness and more "
            "clusters cost in learning, are the objective's assumptions, which these runs do not test: plain samples/s "
            "stand beside.",
            "k − 1 and k + 1: the best of all divisions of the nodes into so many clusters, by the planner's own "
            "pipelines and prediction. Where one of them is missing, no such division holds two nodes in each cluster. "
            f"Each is rehearsed for {seconds:.0f} s of training.",
            *_told(choices, fleets),
        ],
    )


def _best(kind: str, choices: Sequence[Choice], fleets: Sequence[str], worths: Sequence[float | None]) -> Claim:
    statement = f"the planner's k is worth most, or within noise of it, {kind}"
    shares = {}
    for fleet in fleets:
        mine = _of(choices, worths, fleet, planners=True)
        others = _of(choices, worths, fleet, planners=False)
        if mine and others and len(mine) + len(others) == sum(choice.fleet == fleet for choice in choices):
            shares[fleet] = mine[0] / max(others)
    held = sum(share >= 1 - NOISE for share in shares.values())
    measured = f"{held} of {len(fleets)}"
    if shares:
        worst = min(shares, key=lambda fleet: shares[fleet])
        measured += f"; {shares[worst]:.3f} of the better neighbour at worst ({worst})"
    return Claim(kind, statement, f">= {1 - NOISE:g} of each neighbour", measured, held == len(fleets) > 0)


def _of(choices: Sequence[Choice], worths: Sequence[float | None], fleet: str, *, planners: bool) -> list[float]:
    both = zip(choices, worths, strict=True)
    return [w for choice, w in both if choice.fleet == fleet and choice.is_planners == planners and w is not None]


def _told(choices: Sequence[Choice], fleets: Sequence[str]) -> list[str]:
    """A line for each failure, and for each fleet in which another number was worth more."""
    lines = [
        f"{c.fleet}, {c.clusters} clusters: failed: {c.rehearsed}" for c in choices if isinstance(c.rehearsed, str)
    ]
    for fleet in fleets:
        mine = next(choice for choice in choices if choice.fleet == fleet and choice.is_planners)
        for other in choices:
            own, theirs = mine.worth(mine.rehearsed), other.worth(other.rehearsed)
            if other.fleet == fleet and own is not None and theirs is not None and own < theirs:
                by = mine.plan.predicted.objective / other.plan.predicted.objective - 1
                kept = "within noise" if own >= theirs * (1 - NOISE) else "not within noise"
                lines.append(
                    f"{fleet}: {other.clusters} clusters were worth {theirs / own - 1:.1%} more than the planner's "
                    f"{mine.clusters} when rehearsed ({kept}); predicted, they are worth {by:.1%} less."
                )
    return lines


def _table(choices: Sequence[Choice]) -> Table:
    rows: list[list[Cell]] = []
    for choice in choices:
        made, late = choice.rehearsed, late_share(choice.rehearsed)
        rows.append(
            [
                choice.fleet,
                choice.words,
                f"{choice.clusters}{' (planner)' if choice.is_planners else ''}",
                "+".join(str(len(cluster.stages)) for cluster in choice.plan.clusters),
                choice.plan.predicted.objective,
                choice.worth(choice.simulated),
                choice.worth(made),
                choice.plan.predicted.samples_per_s,
                choice.simulated.samples_per_s,
                None if isinstance(made, str) else made.samples_per_s,
                None if late is None else f"{late:.1%}",
            ]
        )
    columns = ["fleet", "nodes", "clusters", "stages"]
    columns += [
        f"{what}, {kind}" for what in ("worth", "samples/s") for kind in ("predicted", "simulated", "rehearsed")
    ]
    return Table("Worth and samples/s", [*columns, "late"], rows)


def _panel(choices: Sequence[Choice]) -> Panel:
    names = [f"{choice.fleet}\nk={choice.clusters}{'*' if choice.is_planners else ''}" for choice in choices]
    kinds = {
        "predicted": [choice.plan.predicted.objective for choice in choices],
        "simulated": [choice.worth(choice.simulated) or 0.0 for choice in choices],
        "rehearsed": [choice.worth(choice.rehearsed) or 0.0 for choice in choices],
    }
    series = [Series(kind, names, values) for kind, values in kinds.items()]
    return Panel("The planner's k (*) and its neighbours", "", "worth", series)
