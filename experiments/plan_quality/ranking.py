"""Do the search's estimates rank plans of starving worlds as the prediction does, and the prediction as the simulator?

In DT-FM's worlds with rounds of 488 samples averaging holds all clusters up. Plans are drawn at random: numbers of
clusters, groups of neighbours or of anybody, orders and cuts. What hill climbing goes by (PlanWorths.of, roughly) is
compared with the objective, samples/s with those of a simulation, and what the local search goes by (estimates of
groups, with the rounds of the plan before) with the objective of the groups worked out, with these rounds and with
rounds of 32,768 samples, for which nobody waits. Each by Spearman's rank correlation within one world.
"""

import math
import time
from collections.abc import Sequence

import numpy as np

from cluster_planner import Cluster, Fleet, Plan, SpanCosts, make_rings, predict
from cluster_planner.inputs.spans import Floats
from cluster_planner.pipeline.best_pipeline import timed
from cluster_planner.pipeline.memory_fit import recomputing
from cluster_planner.predict.objective import averaging_per_s
from cluster_planner.predict.plan_worths import PlanWorths
from cluster_planner.search.candidates import Assembler, averaging_limits_of
from cluster_planner.search.estimates import FINE_POSITIONS, Estimator, Group
from cluster_planner.search.starting_groups import embed
from experiments.harness.report import Claim, Part, Table
from experiments.plan_quality.baselines import Site
from experiments.plan_quality.public_worlds import models, simulated, work_of
from experiments.plan_quality.published_worlds import published_worlds

WORLDS = ("spot", "universities", "regional", "worldwide")
PLANS = 40
SIMULATED = 10
"""So many of the plans of a world are simulated."""
GROUPED = 16
"""So many groupings of a world are worked out."""
MOST_CLUSTERS = 8
FED_EVERY = 32_768
"""Samples of a round with which nobody waits for averaging."""
LEAST = 0.95
"""The rank correlation that is asked for."""


def correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Return Spearman's rank correlation of two lists of figures of the same plans."""
    return float(np.corrcoef(_ranks(first), _ranks(second))[0, 1])


def _ranks(values: Sequence[float]) -> Floats:
    """Return each value's rank; equal values share the mean of theirs."""
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    ranks: Floats = (np.cumsum(count) - (count - 1) / 2)[place]
    return ranks


def random_groups(fleet: Fleet, clusters: int, random: np.random.Generator) -> list[Group]:
    """Return a division of all nodes into so many groups: of neighbours, of anybody, or with some exchanged."""
    points = embed(fleet, fleet.names)
    axis = points @ random.normal(size=points.shape[1])
    mixed = float(random.choice([0.0, 0.1, 1.0]))
    order = np.argsort(axis + mixed * random.normal(size=len(axis)) * max(1e-9, float(axis.std())), kind="stable")
    return [tuple(sorted(int(i) for i in part)) for part in np.array_split(order, clusters)]


def _count(site: Site, random: np.random.Generator) -> int:
    return int(random.integers(2, min(MOST_CLUSTERS, len(site.fleet.nodes)) + 1))


def random_clusters(site: Site, clusters: int, random: np.random.Generator) -> tuple[Cluster, ...] | None:
    """Return clusters of random groups, in random orders and with random cuts; None where memory is short."""
    made: list[Cluster] = []
    for group in random_groups(site.fleet, clusters, random):
        names = [site.fleet.names[i] for i in random.permutation(group)][: site.spans.count]
        stages = site.cut_by(names, random.uniform(0.7, 1.3, len(names)).tolist())
        whole = recomputing(site.fleet, site.spans, stages, 1)
        if whole is None:
            return None
        found = timed(site.fleet, site.spans, whole, 0.0)
        made.append(Cluster(f"c{len(made)}", found.window, found.stages))
    return tuple(made)


def whole_plans(site: Site, plans: int, simulations: int, seed: int) -> tuple[float, float]:
    """Return the rank correlations of rough worths with objectives, and of predicted with simulated samples/s."""
    random, worths = np.random.default_rng(seed), PlanWorths(site.fleet, site.spans)
    rough, exact, predicted, seen = list[float](), list[float](), list[float](), list[float]()
    while len(exact) < plans:
        clusters = random_clusters(site, _count(site, random), random)
        if clusters is None:
            continue
        rings = make_rings(site.fleet, site.spans, clusters)
        made = predict(site.fleet, site.spans, clusters, rings).prediction
        rough.append(worths.of(clusters, roughly=True))
        exact.append(made.objective)
        if len(seen) < simulations:
            plan = Plan(
                clusters=clusters,
                rings=rings,
                spares=(),
                predicted=made,
                fleet=site.fleet,
                costs=site.costs,
                workload=site.work,
                job={},
                seed=0,
                job_file="job.yaml",
            )
            predicted.append(made.samples_per_s)
            seen.append(simulated(plan))
    return correlation(rough, exact), correlation(predicted, seen) if simulations > 2 else math.nan


def groupings(site: Site, plans: int, seed: int) -> float:
    """Return the rank correlation of what groupings are estimated to be worth with what they are, worked out."""
    random, names = np.random.default_rng(seed), site.fleet.names
    few, finer = site.spans.coarse, SpanCosts(site.costs, site.work, FINE_POSITIONS)
    assembler, conditions = Assembler(site.fleet, site.spans, 1), None
    estimated, exact = list[float](), list[float]()
    while len(exact) < plans:
        groups = random_groups(site.fleet, _count(site, random), random)
        found = assembler.candidate([tuple(names[i] for i in group) for group in groups])
        if found is None:
            continue
        if conditions is None:
            conditions = averaging_limits_of(found)
            continue
        load = averaging_per_s(len(groups), conditions.samples_per_s, site.work)
        each = Estimator(site.fleet, few, 1, float(f"{load:.2g}"), finer).of(groups)
        rate, value = sum(one.samples_per_s for one in each), sum(one.value for one in each)
        estimated.append(conditions.worth(len(each), rate, value, site.work))
        exact.append(found.objective)
    return correlation(estimated, exact)


def measure(*, quick: bool) -> Part:
    """The worlds with rounds of 488 samples and the smaller model; with `quick` one of them, and few plans."""
    began_s = time.process_time()
    plans, simulations, grouped = (8, 0, 4) if quick else (PLANS, SIMULATED, GROUPED)
    rows: list[list[str | int | float | None]] = []
    for world in WORLDS[-1:] if quick else WORLDS:
        fleet, costs = published_worlds()[world], models()["1.3B"]
        starving, fed = Site(fleet, costs, work_of(488)), Site(fleet, costs, work_of(FED_EVERY))
        groups_of = [groupings(site, grouped, 0) for site in (starving, fed)]
        rows.append([world, *whole_plans(starving, plans, simulations, 0), *groups_of])
    whole, simulator, groups, fed_groups = (min(float(row[column] or 0) for row in rows) for column in (1, 2, 3, 4))
    asked = f"≥ {LEAST}"
    return Part(
        name="ranking",
        title="Plans of starving worlds: whether estimates rank them as the prediction does",
        claims=[
            Claim("plans", "estimates of whole plans, against the prediction", asked, f"{whole:.3f}", whole >= LEAST),
            Claim("simulator", "the prediction, against simulations", asked, f"{simulator:.3f}", simulator >= LEAST),
            Claim("fed", "groups, where nobody waits, likewise", asked, f"{fed_groups:.3f}", fed_groups >= LEAST),
        ],
        tables=[
            Table(
                "Rank correlation",
                ["world", "whole plans", "prediction with simulation", "groups", f"groups, rounds of {FED_EVERY:,}"],
                rows,
            )
        ],
        panels=[],
        notes=[
            f"{plans} random plans of each world, {simulations} of them simulated, and {grouped} random groupings; "
            "claims are of the worst world. Estimates of groups know averaging as the plan before had it. Where it "
            f"starves they rank nothing ({groups:.3f}), and nothing is decided by them: the k-means of every k is "
            "worked out as a whole plan (docs/decisions/predictions.md).",
            f"Processor time of this part: {time.process_time() - began_s:.0f} s.",
        ],
    )
