"""DT-FM's worlds: the planner against a genetic algorithm, stages that are regions by hand, and hill climbing.

For each world (published_worlds.py), model and `average_every`, all are judged by the planner's own prediction; plans
that win are also simulated. The genetic algorithm gets the processor time that the planner took; hill climbing goes on
from the plan (cluster_planner/search/whole_plans.py) until it finds nothing any more, or some minutes have passed, and
so shows what the search has left.

The 16 cases of a model take from half an hour to three hours. So cases can be measured one by one:
those that were measured before keep their rows, each with its commit and its minutes of climbing.
"""

import math
import sys
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from cluster_planner import Cluster, Fleet, ModelCosts, Plan, SpanCosts, Workload, make_plan
from cluster_planner.pipeline.common_cuts import common_cuts
from cluster_planner.predict.plan_worths import PlanWorths
from cluster_planner.search.short_runs import short_runs
from cluster_planner.search.whole_plans import WholePlans
from experiments.harness.report import Cell, Claim, Part, Table, commit
from experiments.plan_quality.baselines import Site, genetic
from experiments.plan_quality.published_worlds import published_worlds
from experiments.plan_quality.worlds import gpt, workload
from ravnest import simulate

AVERAGE_EVERY = (488, 4096)
CLIMB_MINUTES = 10.0
"""Minutes of processor time for which hill climbing goes on from the plan, if nothing else is asked for."""
IDLE_PER_NODE = 150
"""Climbing ends earlier where so many changes for each node, one after another, have gained nothing: then hardly any is
left that would.
"""
BESIDE_MINUTES = 1.0
"""About what planning, the genetic algorithm and the simulation of one case take."""
QUICK_CLIMB_MINUTES = 0.05
COLUMNS = (
    *("world", "average_every", "stages", "spares", "seconds", "planner", "genetic", "by hand", "climbed"),
    *("minutes climbed", "samples/s, predicted", "samples/s, simulated", "commit"),
)
ROUNDS = 12
"""Rounds of averaging that a simulation lasts, so that ten and more are whole."""
LEAST_SHARE, LEAST_GAIN, WITHIN = 0.99, 1.05, 0.10
TOO_SMALL = {"7B": ("line",)}
"""By model the worlds that cannot hold it, as planning says: they are no cases of it."""


def models() -> dict[str, ModelCosts]:
    """Return the models by name: GPTs of 1.3 and of 7 billion parameters."""
    return {"1.3B": gpt(), "7B": gpt(layers=32, width=4096, context=2048)}


def work_of(average_every: int) -> Workload:
    """Return the workload: everything in float32 on the wire, as a job is without `wire` and `averaging`."""
    return replace(
        workload(),
        average_every=average_every,
        averaged_bytes_per_parameter_byte=1.0,
        activation_wire_ratio=1.0,
        gradient_wire_ratio=1.0,
    )


def by_hand(fleet: Fleet, spans: SpanCosts) -> float:
    """Return what the plan is worth whose stages are the regions, in the order of the file, each cluster with one node
    of each region; 0 where the model does not fit so.
    """
    regions: dict[str | None, list[str]] = {}
    for node in fleet.nodes:
        regions.setdefault(node.region, []).append(node.name)
    if len(regions) < 2:
        return 0.0
    orders = list(zip(*regions.values(), strict=False))
    worths, best = PlanWorths(fleet, spans), 0.0
    for made in common_cuts(fleet, spans, orders):
        best = max(best, worths.of([Cluster("", one.window, one.stages) for one in made]))
    return best


def climbed(
    fleet: Fleet, spans: SpanCosts, clusters: Sequence[Cluster], least: int, seconds: float
) -> tuple[float, float]:
    """Return what hill climbing makes of a plan, by other draws than the planner's, and the seconds of processor time
    that it took: `seconds`, or fewer where IDLE_PER_NODE changes for each node gained nothing.
    """
    worths = PlanWorths(fleet, spans)
    climber = WholePlans(fleet, spans, worths, fleet.names, least)
    began_s, idle_most = time.process_time(), IDLE_PER_NODE * len(fleet.nodes)
    runs = short_runs(climber, clusters, worths.of(clusters), seed=1)
    worth = next(best for _, best, idle in runs if idle >= idle_most or time.process_time() - began_s >= seconds)
    return worth, time.process_time() - began_s


def cases_of(asked: Collection[str]) -> list[tuple[str, int]]:
    """Return the cases that are asked for as `world` or `world:average_every`, in the order of the worlds; all where
    nothing is asked for. Raises ValueError for a case that there is not.
    """
    every = [(world, average_every) for world in published_worlds() for average_every in AVERAGE_EVERY]
    known = {name for world, average_every in every for name in (world, f"{world}:{average_every}")}
    if strange := sorted(set(asked) - known):
        raise ValueError(f"there is no case {strange[0]}: expected one of {', '.join(sorted(known))}")
    return [case for case in every if not asked or {case[0], f"{case[0]}:{case[1]}"} & set(asked)]


def _of(model: str, cases: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
    """Return those of the cases whose world can hold the model."""
    return [case for case in cases if case[0] not in TOO_SMALL.get(model, ())]


def _case(world: str, average_every: int, costs: ModelCosts, minutes: float) -> list[Cell]:
    """Return the row of one case."""
    fleet, work = published_worlds()[world], work_of(average_every)
    spans = SpanCosts(costs, work)
    at_s = time.process_time()
    plan = make_plan(fleet, costs, work, job={}, job_file="job.yaml")
    spent_s = time.process_time() - at_s
    further, climbed_s = climbed(fleet, spans, plan.clusters, 1, 60 * minutes)
    return [
        world,
        average_every,
        "+".join(str(len(cluster.stages)) for cluster in plan.clusters),
        len(plan.spares),
        spent_s,
        plan.predicted.objective,
        genetic(Site(fleet, costs, work), evaluations=None, seconds=spent_s)[0],
        by_hand(fleet, spans),
        further,
        climbed_s / 60,
        plan.predicted.samples_per_s,
        simulated(plan),
        commit(),
    ]


def simulated(plan: Plan) -> float:
    """Return samples/s of a simulation of ROUNDS rounds or more."""
    samples = ROUNDS * round(plan.workload.round_samples(len(plan.clusters)))
    return simulate(plan, samples=samples).samples_per_s


def measure(
    model: str,
    *,
    quick: bool,
    asked: Collection[str] = (),
    climb_minutes: float = CLIMB_MINUTES,
    earlier: Callable[[], Sequence[Sequence[Cell]]] = list,
) -> Part:
    """The cases that are asked for with one of the models; with `quick` two worlds.

    `earlier` returns the rows that were measured before, which stay unless their case is measured again. It is asked
    at the end, as another process may have measured other cases meanwhile.
    """
    cases = _of(model, cases_of(asked or (("universities", "worldwide") if quick else ())))
    if not cases:
        raise ValueError(f"no world that is asked for can hold {model} parameters")
    minutes = QUICK_CLIMB_MINUTES if quick else climb_minutes
    takes = len(cases) * (minutes + BESIDE_MINUTES)
    print(f"worlds_{model}: {len(cases)} cases, about {takes:.0f} minutes", file=sys.stderr, flush=True)
    fresh = dict[tuple[str, int], Sequence[Cell]]()
    began_s = time.process_time()
    for world, average_every in cases:
        fresh[world, average_every] = row = _case(world, average_every, models()[model], minutes)
        print(f"worlds_{model}:", *row, file=sys.stderr, flush=True)
    rows = {(str(row[0]), int(row[1] or 0)): row for row in earlier()} | fresh
    every = _of(model, cases_of(()))
    return _part(model, [rows[case] for case in every if case in rows], len(every), time.process_time() - began_s)


def _part(model: str, rows: Sequence[Sequence[Cell]], every: int, spent_s: float) -> Part:
    """Return what these rows say, of so many cases that there are."""
    found = [dict(zip(COLUMNS, row, strict=True)) for row in rows]

    def figure(row: dict[str, Cell], name: str) -> float:
        return float(row[name] or 0)

    others = [max(figure(row, "genetic"), figure(row, "by hand")) for row in found]
    mine = [figure(row, "planner") for row in found]
    shares = [one / max(other, figure(row, "climbed")) for one, other, row in zip(mine, others, found, strict=True)]
    gains = [one / other for one, other in zip(mine, others, strict=True) if other > 0]
    agree = [figure(row, "samples/s, predicted") / figure(row, "samples/s, simulated") for row in found]
    geometric = math.exp(sum(map(math.log, gains)) / len(gains))
    worst, farthest = min(shares), max(agree, key=lambda one: abs(math.log(one)))
    whole = len(rows) == every

    def verdict(held: bool) -> bool | None:
        return held if whole or not held else None

    said = "" if whole else f" (of {len(rows)} of {every} cases)"
    return Part(
        name=f"worlds_{model}",
        title=f"DT-FM's worlds, {model} parameters: the planner against other ways",
        claims=[
            Claim(
                "worlds",
                f"worth over the best other's, at worst{said}",
                f"≥ {LEAST_SHARE}",
                f"{worst:.3f}; {sum(share >= LEAST_SHARE for share in shares)} of {len(shares)} cases",
                verdict(worst >= LEAST_SHARE),
            ),
            Claim(
                "mean",
                f"worth over that of the genetic algorithm or by hand, whichever is more; geometric mean{said}",
                f"≥ {LEAST_GAIN}",
                f"{geometric:.3f}",
                verdict(geometric >= LEAST_GAIN),
            ),
            Claim(
                "simulated",
                f"samples/s, predicted over simulated, farthest from 1{said}",
                f"within {WITHIN:.0%}",
                f"{abs(farthest - 1):.1%} off",
                verdict(abs(farthest - 1) <= WITHIN),
            ),
        ],
        tables=[Table("Worth", COLUMNS, rows)],
        panels=[],
        notes=[
            "Equal GPUs of 25 TFLOP/s and 32 GB: 64, but 8 in the world `line`. Hill climbing begins at the planner's "
            f"own plan, and ends where {IDLE_PER_NODE} changes for each node, one after another, have gained nothing, "
            "or after the minutes that it is given. The genetic algorithm has the planner's processor time. By hand: "
            "one stage in each region, where the model fits so (0 where it does not). Cases may have been measured in "
            "several runs, so that each names its commit.",
            f"Processor time of the last run of this part: {spent_s:.0f} s.",
        ],
    )
