"""The parts of the experiment: what is planned, and what is claimed of it."""

import math
import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from cluster_planner import NoFeasiblePlan, Plan, make_plan
from experiments.harness.report import Claim, Panel, Part, Series, Table, median
from experiments.plan_quality.baselines import Site, genetic, random_plan, simple_split
from experiments.plan_quality.brute_force import best_of_all
from experiments.plan_quality.small_fleets import Case, hard_case, hard_kind, small_case
from experiments.plan_quality.worlds import Pairs, gpt, made_up_regions, read_regions, workload, world

WORLD_NODES = 64

SMALLER = (8, 16, 32)
"""Fleets whose planning is timed, too, with no limit: more starts are climbed from than in larger ones."""

ALLOWED_S = {64: 10.0, 100: 15.0, 1000: 15.0, 10_000: 180.0}
"""Seconds of one core in which fleets of so many nodes are to be planned."""

BEST = "the optimum, or the best plan that was seen"

HARD_S = 3600.0
"""Hard cases are begun only within these seconds of processor time: where rounds starve, what pipelines are worth says
little of a plan, so that plans of 6 and 7 nodes are compared by the hundred thousand, which takes minutes.
"""


def brute_force(*, quick: bool) -> Part:
    """Random fleets of 3 to 7 nodes against the best of all plans."""
    title = "Small fleets: the planner against the best of all plans"
    given = (12 if quick else 200, 5 if quick else 7, math.inf)
    return _against_all("brute_force", title, small_case, lambda _: "random", *given)


def hard_brute_force(*, quick: bool) -> Part:
    """The same of 1f1b in tight memory, of stages that recompute there, and of rounds that starve."""
    title = "Small fleets in tight memory (1f1b, or recomputing), or with rounds that starve, against the best of all"
    given = (12 if quick else 120, 4 if quick else 7, HARD_S)
    return _against_all("brute_force_hard", title, hard_case, hard_kind, *given)


def _against_all(
    name: str,
    title: str,
    case: Callable[[int, int], Case],
    kind_of: Callable[[int], str],
    most_cases: int,
    most_nodes: int,
    most_s: float,
) -> Part:
    """`kind_of` says of which kind the case of a seed is. `most_s`: no case is begun after so many seconds of processor
    time.
    """
    began_s = time.process_time()
    bounds: list[float] = []
    found: dict[tuple[str, int], list[float]] = {}
    unproven = infeasible = cases = 0
    for seed in range(most_cases):
        if cases > 0 and time.process_time() - began_s > most_s:
            break
        cases += 1
        fleet, costs, work = case(seed, most_nodes)
        same = found.setdefault((kind_of(seed), len(fleet.nodes)), [])
        try:
            predicted = make_plan(fleet, costs, work, job={}, job_file="job.yaml").predicted
        except NoFeasiblePlan:
            if best_of_all(fleet, costs, work, 1).objective > 0:
                same.append(0.0)
            else:
                infeasible += 1
            continue
        best = best_of_all(fleet, costs, work, 1, predicted.objective)
        spent_s = time.process_time() - began_s
        share = predicted.objective / best.objective
        said = f"{share:.4f} of the {'optimum' if best.proven else 'best that was seen'}, {best.predicted} plans"
        print(f"{name}: seed {seed}, {len(fleet.nodes)} nodes: {said}; {spent_s:.0f} s", file=sys.stderr, flush=True)
        unproven += not best.proven
        same.append(share)
        assert predicted.best_possible is not None
        bounds.append(best.objective / predicted.best_possible)
    ratios = sorted(share for same in found.values() for share in same)
    mean = sum(ratios) / len(ratios)
    return Part(
        name=name,
        title=title,
        claims=[
            Claim("mean", f"objective over {BEST}, on average", "≥ 0.97", f"{mean:.4f}", mean >= 0.97),
            *_worst(found),
            Claim(
                "proven",
                "fleets that can hold their model, and whose optimum is known",
                "≥ 95 % of them",
                f"{len(ratios) - unproven} of {cases - infeasible}",
                len(ratios) - unproven >= 0.95 * (cases - infeasible),
            ),
            Claim(
                "bound", "no optimum is above the plan's bound", "≤ 1", f"{max(bounds):.3f}", max(bounds) <= 1 + 1e-9
            ),
        ],
        tables=[
            Table(
                "By number of nodes",
                ["fleets of", "nodes", "fleets", "mean", "worst", "none better"],
                [
                    [*like, len(same), sum(same) / len(same), min(same), sum(one > 1 - 1e-6 for one in same)]
                    for like, same in sorted(found.items())
                    if same
                ],
            )
        ],
        panels=[
            Panel(
                "Objective over the optimum",
                "fleets, worst first",
                "of the optimum",
                [
                    Series("plan", list(range(len(ratios))), ratios),
                    Series("optimum over bound", list(range(len(bounds))), sorted(bounds)),
                ],
                target=0.97,
            )
        ],
        notes=[
            f"{len(ratios)} of {cases} seeds: {infeasible} fleets cannot hold their model, and for {unproven} too many "
            "plans were left that might have been better, so that the best that was seen counts.",
            *([] if cases == most_cases else [f"Then {most_s:g} s were spent, and {most_cases - cases} were left."]),
            _spent(began_s),
        ],
    )


def _worst(found: Mapping[tuple[str, int], Sequence[float]]) -> Iterator[Claim]:
    """Yield what is claimed of the worst fleet of each kind. `found`: shares of the optimum by kind and nodes."""
    kinds = dict.fromkeys(kind for (kind, _), same in found.items() if same)
    for kind in kinds:
        least = min(share for (one, _), same in found.items() if one == kind for share in same)
        name = "worst" if len(kinds) == 1 else f"worst: {kind}"
        yield Claim(name, f"objective over {BEST}, at worst", "≥ 0.90", f"{least:.4f}", least >= 0.90)


def baselines(regions: Path | None, *, quick: bool) -> Part:
    """A world of mixed GPUs: the planner against other ways to plan."""
    nodes = 24 if quick else WORLD_NODES
    part_began_s = time.process_time()
    site = Site(world(nodes, _pairs(regions)), gpt(), workload())
    began_s = time.process_time()
    plan = make_plan(site.fleet, site.costs, site.work, job={}, job_file="job.yaml")
    seconds = time.process_time() - began_s
    random = np.random.default_rng(0)
    drawn = [random_plan(site, random) for _ in range(20 if quick else 200)]
    evolved, _ = genetic(site, evaluations=300 if quick else 5000, seconds=None)
    timely, evaluations = genetic(site, evaluations=None, seconds=seconds)
    mine = plan.predicted.objective
    others = {
        "random, median": median(drawn),
        "random, best": max(drawn),
        "k-means, equal splits": simple_split(site, "equally"),
        "k-means, split by memory": simple_split(site, "memory"),
        "k-means, split by speed": simple_split(site, "speed"),
        "genetic, by evaluations": evolved,
        f"genetic, equal time ({evaluations} evaluations)": timely,
    }
    strongest = max(others, key=lambda name: others[name])
    least = mine / others["random, median"] if others["random, median"] else float("inf")
    assert plan.predicted.best_possible is not None
    return Part(
        name="baselines",
        title=f"A world of {nodes} nodes: the planner against other ways",
        claims=[
            Claim(
                "best",
                "better than each",
                "> 1",
                f"{mine / others[strongest]:.3f}× {strongest}",
                mine > others[strongest],
            ),
            Claim("random", "over the median random plan", "≥ 2", f"{least:.3g}×", least >= 2),
            Claim("time", "seconds of processor time to plan", "< 10", f"{seconds:.1f}", seconds < 10),
        ],
        tables=[
            Table(
                "Objective",
                ["way", "objective", "planner's is"],
                [
                    ["planner", mine, 1.0],
                    *([name, value, mine / value if value else None] for name, value in others.items()),
                ],
            ),
            Table("The plan", ["figure", "value"], _figures(plan)),
        ],
        panels=[
            Panel(
                "Objective",
                "",
                "samples/s, discounted",
                [Series("objective", ["planner", *others], [mine, *others.values()])],
            )
        ],
        notes=[
            "k-means' k is the one with the highest objective, which flatters it. Random plans are drawn again where "
            "memory is short; 0 is a way that found nothing that fits. The genetic algorithm optimises the planner's "
            "own estimates, and its groups get the planner's pipelines.",
            "Regions: "
            + ("made up (no file given)" if regions is None else f"{regions.name}, as published with DT-FM")
            + ".",
            _spent(part_began_s),
        ],
    )


def scaling(regions: Path | None, *, quick: bool) -> Part:
    """Time and memory by the number of nodes."""
    part_began_s = time.process_time()
    limits = {WORLD_NODES: ALLOWED_S[WORLD_NODES]} if quick else ALLOWED_S
    rows: list[Sequence[str | int | float | None]] = []
    seconds: dict[int, float] = {}
    for nodes in sorted({*limits, *(() if quick else SMALLER)}):
        fleet = world(nodes, _pairs(regions))
        began_s = time.process_time()
        plan = make_plan(fleet, gpt(), workload(), job={}, job_file="job.yaml")
        seconds[nodes] = time.process_time() - began_s
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        share = None
        if plan.predicted.best_possible is not None:
            share = plan.predicted.objective / plan.predicted.best_possible
        print(f"scaling: {nodes} nodes, {seconds[nodes]:.1f} s", file=sys.stderr, flush=True)
        rows.append(
            [
                nodes,
                seconds[nodes],
                round(memory),
                len(plan.clusters),
                len(plan.spares),
                plan.predicted.objective,
                share,
            ]
        )
    claims = [
        Claim(
            f"{nodes}",
            f"{nodes:,} nodes, processor seconds on one core",
            f"< {limit:g}",
            f"{seconds[nodes]:.1f}",
            seconds[nodes] < limit,
        )
        for nodes, limit in limits.items()
    ]
    if len(limits) > 1:
        powers = [math.log10(seconds[nodes] / seconds[nodes // 10]) for nodes in limits if nodes // 10 in limits]
        words = ", ".join(f"{power:.2f}" for power in powers)
        claims.append(
            Claim("near-linear", "as which power of the nodes time grows", "≤ 1.1", words, max(powers) <= 1.1)
        )
    return Part(
        name="scaling",
        title="How planning grows with the fleet",
        claims=claims,
        tables=[
            Table(
                "By number of nodes",
                ["nodes", "seconds", "MiB of the process", "clusters", "spares", "objective", "of the bound"],
                rows,
            )
        ],
        panels=[
            Panel(
                "Time to plan",
                "nodes",
                "seconds",
                [Series("planner", list(seconds), list(seconds.values()))],
                log_x=True,
                log_y=True,
            )
        ],
        notes=[_spent(part_began_s)],
    )


def _spent(began_s: float) -> str:
    return f"Processor time of this part: {time.process_time() - began_s:.0f} s."


def _pairs(regions: Path | None) -> Pairs:
    return made_up_regions() if regions is None else read_regions(regions)


def _figures(plan: Plan) -> list[list[str | int | float | None]]:
    predicted = plan.predicted
    return [
        ["clusters", len(plan.clusters)],
        ["stages", sum(len(cluster.stages) for cluster in plan.clusters)],
        ["spares", len(plan.spares)],
        ["samples/s", predicted.samples_per_s],
        ["of the bound", None if predicted.best_possible is None else predicted.objective / predicted.best_possible],
    ]
