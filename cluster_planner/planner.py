"""From a fleet and a model to a plan, and what the constraints of a plan cost.

`make_plan` puts together what the search finds (search/cluster_search.py), the spares with their reasons
(advice/spares.py) and the advice (advice/single_changes.py). The same input gives the same plan, whatever the hash seed
and the processor. `improve_plan` searches on from a plan for as long as it is told to.

`without_constraints` plans anew without constraints, in fleets of up to MOST_NODES_TO_PLAN_ANEW nodes. Where there are
several they are first dropped all together: one may cost nothing as long as another stands, and where they cost nothing
together, none does. Else the first MOST follow one at a time. What is not tried is said. Hours and caps belong to the
nodes and stay.
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from cluster_planner.advice import lean_optimizer, rarer_rounds
from cluster_planner.advice.feasibility import (
    no_common_hours,
    no_fit,
    no_fit_for_constraints,
    require_feasible,
    require_possible,
)
from cluster_planner.advice.job_changes import WORTHWHILE, Suggestion, most_of_a_round
from cluster_planner.advice.single_changes import advise, most_promising, with_bottleneck
from cluster_planner.advice.spares import left_out, too_small
from cluster_planner.advice.warm_spares import with_warm_spares
from cluster_planner.errors import InvalidInput, NoFeasiblePlan
from cluster_planner.formatting import format_count, format_rate
from cluster_planner.inputs.constraints import LAST, UNCONSTRAINED, Constraints, Pin
from cluster_planner.inputs.fleet import Fleet
from cluster_planner.inputs.model_costs import ModelCosts, Workload
from cluster_planner.inputs.spans import SpanCosts
from cluster_planner.pipeline.memory_fit import MemoryFit
from cluster_planner.plan import Cluster, Plan, Spare, validate
from cluster_planner.predict.plan_worths import PlanWorths
from cluster_planner.predict.prediction import predict
from cluster_planner.predict.upper_bound import best_possible
from cluster_planner.rings import FINE_SEGMENTS, OWN_ORDER, finer_rings
from cluster_planner.search.candidates import Assembler, Candidate
from cluster_planner.search.cluster_search import EXHAUSTIVE_NODES, Search
from cluster_planner.search.joined_spares import with_spares
from cluster_planner.search.planned_anew import MOST_NODES_TO_PLAN_ANEW, planned_anew
from cluster_planner.search.search_context import CUT_POSITIONS, SearchProblem
from cluster_planner.search.short_runs import Ended, EndingPlans, short_runs
from cluster_planner.search.steps import Step, unheard
from cluster_planner.search.whole_plans import WholePlans

MOST = 12

ALL = "without any of the constraints"

LAST_TRIES = 60
"""A search that goes on ends after so many changes for each node that gained nothing."""

SPARE_TRIES, SPARE_TRIES_TIMES_NODES = 100, 12_000
"""At most so many plans are compared to see whether a spare makes the plan worth more, or the second divided by the
nodes, where that is more.
"""

SEGMENTS, FINE_COST = (FINE_SEGMENTS, 12, 8, 6, 4, 3, 2), 0.01
"""Where losses of nodes are known to come, a plan has the first of these numbers of segments that costs no more than
this part of its worth.
"""

UNEXPLAINED = "planning was interrupted before anything was worked out about it"
"""The reason of each spare of a plan with which planning was interrupted, and what stands for its advice."""


def make_plan(
    fleet: Fleet,
    costs: ModelCosts,
    workload: Workload,
    *,
    job: Mapping[str, object],
    job_file: str,
    seed: int = 0,
    min_stages: int = 1,
    trained_samples: float = math.inf,
    trained_s: float = math.inf,
    progress: Callable[[Step], None] | None = None,
    interrupted: Callable[[Plan], None] | None = None,
) -> Plan:
    """Return the best plan found. The same input gives the same plan, whatever the hash seed.

    `min_stages`: stages a cluster has at the least; with 1, a node that holds the whole model may be a cluster by
    itself. A fleet of one node may always run one stage. `trained_samples`, `trained_s`: after how many samples of the
    whole fleet, or seconds, training ends; the advice goes by them. `progress` is told of each step of the search.
    `interrupted` is given the best plan so far, if any, where a KeyboardInterrupt ends the search; it goes on then.
    That plan has no advice, bound, spares' reasons or warm spares, which take many seconds in large fleets.

    Raises `InvalidInput`, and `NoFeasiblePlan` where fleet, model and workload do not fit each other.
    """
    if min_stages < 1:
        raise InvalidInput(f"must be 1 or more, not {min_stages}", key="min_stages")
    least = 1 if len(fleet.nodes) == 1 else min_stages
    spans = SpanCosts(costs, workload)
    memory_fit = MemoryFit(fleet, spans, least)
    able = tuple(i for i, name in enumerate(fleet.names) if memory_fit.holds_a_unit(name))
    names = tuple(fleet.names[i] for i in able)
    require_feasible(fleet, costs, memory_fit, names, least)
    require_possible(fleet, spans, names, least)

    tell = progress if progress is not None else unheard
    problem = SearchProblem(fleet, costs, workload, able, least, seed)
    search = Search(problem, spans, memory_fit, tell)

    def plan_of(best: Candidate) -> Plan:
        return Plan(
            clusters=best.clusters,
            rings=best.rings,
            spares=(),
            predicted=best.forecast.prediction,
            fleet=fleet,
            costs=costs,
            workload=workload,
            job=job,
            job_file=job_file,
            seed=seed,
            min_stages=min_stages,
        )

    try:
        best = search.best()
        if best is not None:
            best, useless = _with_spares(best, problem, spans, tell)
            best = _in_fine_segments(best, fleet, spans)
            return _explained(plan_of(best), best, spans, memory_fit, least, (trained_samples, trained_s), useless)
    except KeyboardInterrupt:
        if interrupted is not None and search.found is not None:
            interrupted(_unexplained(plan_of(_in_fine_segments(search.found, fleet, spans))))
        raise
    if fleet.rules.count_hours and fleet.constraints == UNCONSTRAINED:
        raise NoFeasiblePlan(no_common_hours(), key="nodes")
    if fleet.rules.are_any or fleet.rules.min_clusters > 1:
        raise NoFeasiblePlan(no_fit_for_constraints(fleet), key="constraints")
    raise NoFeasiblePlan(no_fit(fleet, costs, memory_fit, names, least))


def _with_spares(
    best: Candidate, problem: SearchProblem, spans: SpanCosts, tell: Callable[[Step], None]
) -> tuple[Candidate, frozenset[str]]:
    """Return the plan with those of its spares that make it worth more, and the spares that were tried and do not."""
    if len(problem.able) <= EXHAUSTIVE_NODES or len(best.clusters) > OWN_ORDER:
        return best, frozenset()
    fleet, least = problem.fleet, problem.least
    names = [fleet.names[i] for i in problem.able]
    fine = SpanCosts(problem.costs, problem.work, CUT_POSITIONS)
    worths = PlanWorths(fleet, spans)
    climber = WholePlans(fleet, spans, worths, names, least, few=fine)
    clusters, useless = with_spares(climber, worths, fleet, best.clusters, _spare_tries(fleet))
    if clusters != best.clusters:
        before, best = best.objective, Assembler(fleet, spans, least).of_clusters(clusters)
        count = format_count(len(clusters), "cluster")
        tell(Step("spares", f"{count}, with spares taken in", best.objective, best.objective - before))
    return best, useless


def _spare_tries(fleet: Fleet) -> int:
    return max(SPARE_TRIES, SPARE_TRIES_TIMES_NODES // len(fleet.nodes))


def _in_fine_segments(best: Candidate, fleet: Fleet, spans: SpanCosts) -> Candidate:
    """Return the plan in more segments where losses of its nodes are known to come: then clusters are cut anew.

    There are fewer of them where they would cost much: small ones are exchanged directly, which takes more bytes.
    """
    nodes = {stage.node for cluster in best.clusters for stage in cluster.stages}
    if all(fleet.node(name).mtbf_s is None for name in nodes):
        return best
    for most in SEGMENTS:
        rings = finer_rings(best.rings, spans, most)
        finer = replace(best, rings=rings, forecast=predict(fleet, spans, best.clusters, rings))
        if finer.objective >= best.objective * (1 - FINE_COST):
            return finer
    return best


def with_advice_planned(plan: Plan, *, trained_samples: float = math.inf, trained_s: float = math.inf) -> Plan:
    """Return the plan, its advice followed by what planning anew with the change brings, in small fleets also where no
    change gains with the cuts that the plan has: with the most promising one then. Where memory limits the plan,
    what a job would bring whose optimizer keeps next to nothing (advice/lean_optimizer.py) follows, too; where nodes
    stand idle, what longer rounds bring (advice/rarer_rounds.py).

    The arguments are those of `make_plan`.
    """
    spans = SpanCosts(plan.costs, plan.workload)
    forecast = predict(plan.fleet, spans, plan.clusters, plan.rings)
    most_round = most_of_a_round(trained_samples, trained_s, forecast.prediction.samples_per_s)
    advice = advise(plan.fleet, spans, plan.clusters, plan.rings, forecast, most_round)
    if advice.line != plan.predicted.advice:
        return plan
    line, of_plan, change = advice.words, (plan.least_stages, plan.seed), advice.change
    is_hopeless = change is None and len(plan.fleet.nodes) <= MOST_NODES_TO_PLAN_ANEW
    if is_hopeless:  # in a balanced plan something else is as slow as what becomes better, until all is cut anew
        change = most_promising(plan.fleet, spans, plan.clusters, plan.rings, forecast)
    if change is not None and change.changed is not None:
        fleet, work = change.changed
        made = planned_anew(plan.clusters, fleet, plan.costs, work, *of_plan)
        least = plan.predicted.objective if is_hopeless else change.worth
        if made is not None and made.objective > least * (1 + WORTHWHILE):
            rate = f"{format_rate(made.forecast.prediction.samples_per_s)} samples/s"
            worth = f"(worth {format_rate(made.objective)})"
            line += f"; planned anew {f'after {change.words}' if is_hopeless else 'with it'}, {rate} {worth}"
        elif not is_hopeless:
            line += "; planned anew with it, it makes no more"
    line += advice.aside

    def planned(work: Workload) -> rarer_rounds.Planned | None:
        if len(plan.fleet.nodes) <= EXHAUSTIVE_NODES:
            whole = make_plan(plan.fleet, plan.costs, work, **_asked_of(plan))  # type: ignore[arg-type]
            return whole.clusters, whole.predicted
        made = planned_anew(plan.clusters, plan.fleet, plan.costs, work, *of_plan)
        return None if made is None else (made.clusters, made.forecast.prediction)

    line += rarer_rounds.said(plan, planned, most_round)
    if lean_optimizer.may_gain(plan):
        without = lean_optimizer.without_optimizer_state(plan.costs, plan.workload)
        made = planned_anew(plan.clusters, plan.fleet, *without, *of_plan)
        if made is not None and made.objective > plan.predicted.objective * (1 + WORTHWHILE):
            line += lean_optimizer.said(made.forecast.prediction.samples_per_s, made.objective)
    return plan if line == advice.line else replace(plan, predicted=replace(plan.predicted, advice=line))


def improve_plan(
    plan: Plan,
    is_over: Callable[[], bool],
    *,
    trained_samples: float = math.inf,
    trained_s: float = math.inf,
    tell: Callable[[float], None] = lambda worth: None,
    exhausted: Callable[[int], None] = lambda changes: None,
    hurries: Callable[[], bool] = lambda: False,
) -> Plan:
    """Return a plan of the same fleet, model and workload that is worth as much or more.

    Small changes of the whole plan are tried in short runs, with other draws each time, until the search `is_over`,
    which is asked before each change. `tell` hears after each run what the best plan so far is worth. The search ends
    by itself when LAST_TRIES changes for each node have gained nothing: then `exhausted` is told how many those are.
    Its spares are tried one by one at the end, unless it `hurries`. The other arguments are make_plan's.

    Changes are judged in as few segments as cuts make, and without warm spares. Where nodes are known to be lost, a
    plan has more of both, and a change that gains by that judgement may gain nothing.
    """
    fleet, least = plan.fleet, plan.least_stages
    spans = SpanCosts(plan.costs, plan.workload)
    fine = SpanCosts(plan.costs, plan.workload, CUT_POSITIONS)
    memory_fit = MemoryFit(fleet, spans, least)
    names = [name for name in fleet.names if memory_fit.holds_a_unit(name)]
    worths = PlanWorths(fleet, spans)
    climber = EndingPlans(fleet, spans, worths, names, least, few=fine)
    assembler = Assembler(fleet, spans, least)

    def made_of(clusters: Sequence[Cluster]) -> Candidate:
        return _in_fine_segments(assembler.of_clusters(clusters), fleet, spans)

    first = best = made_of(plan.clusters)
    climber.is_over = is_over
    try:
        for clusters, _, idle in short_runs(climber, plan.clusters, worths.of(plan.clusters), plan.seed + 1):
            if idle == 0:
                best = max(best, made_of(clusters), key=lambda one: one.objective)
            tell(plan.predicted.objective + best.objective - first.objective)
            if idle >= LAST_TRIES * len(names):
                exhausted(idle)
                break
    except Ended as ended:
        best = max(best, made_of(ended.taken or best.clusters), key=lambda one: one.objective)
    if best is first:
        return plan
    climber.is_over, clusters, useless = hurries, best.clusters, frozenset[str]()
    if not hurries():
        try:
            clusters, useless = with_spares(climber, worths, fleet, best.clusters, _spare_tries(fleet))
        except Ended as ended:
            clusters = ended.taken or best.clusters
    if clusters != best.clusters:
        joined = made_of(clusters)
        best, useless = (best, frozenset()) if joined.objective < best.objective else (joined, useless)
    changed = replace(plan, clusters=best.clusters, rings=best.rings, predicted=best.forecast.prediction)
    made = _explained(changed, best, spans, memory_fit, least, (trained_samples, trained_s), useless)
    return made if made.predicted.objective > plan.predicted.objective else plan


def _explained(
    plan: Plan,
    best: Candidate,
    spans: SpanCosts,
    memory_fit: MemoryFit,
    least: int,
    trained: tuple[float, float],
    useless: Collection[str] = (),
) -> Plan:
    """Return the plan with the advice, the bound and its spares' reasons. `trained`: after how many samples of the
    fleet, and seconds, training ends. `useless`: spares with which no cluster gains, as was tried.
    """
    fleet = plan.fleet
    able = tuple(i for i, name in enumerate(fleet.names) if memory_fit.holds_a_unit(name))
    most_round = most_of_a_round(*trained, best.forecast.prediction.samples_per_s)
    advice = advise(fleet, spans, best.clusters, best.rings, best.forecast, most_round)
    bound = best_possible(fleet, spans, able, least)
    predicted = replace(best.forecast.prediction, advice=advice.line, best_possible=bound)
    predicted = with_bottleneck(predicted, best.forecast, advice.bottleneck)
    running = {stage.node for cluster in best.clusters for stage in cluster.stages}
    idle = tuple(fleet.names[i] for i in able if fleet.names[i] not in running)
    spares = (*left_out(fleet, spans, best.clusters, idle, least, useless), *too_small(fleet, memory_fit))
    made = with_warm_spares(replace(plan, spares=spares, predicted=predicted))
    validate(made)
    return made


def _unexplained(plan: Plan) -> Plan:
    """Return the plan as it was found, with all its other nodes as spares of which nothing is said."""
    running = {stage.node for cluster in plan.clusters for stage in cluster.stages}
    spares = tuple(Spare(name, UNEXPLAINED) for name in plan.fleet.names if name not in running)
    made = replace(plan, spares=spares, predicted=replace(plan.predicted, advice=f"none: {UNEXPLAINED}"))
    validate(made)
    return made


def _asked_of(plan: Plan) -> dict[str, object]:
    """Return what `make_plan` was asked for beside fleet, costs and workload."""
    return {"job": plan.job, "job_file": plan.job_file, "seed": plan.seed, "min_stages": plan.min_stages}


@dataclass(frozen=True)
class ConstraintCosts:
    """The constraints that are worthwhile to drop, the most valuable first, and which were not tried and why, if
    any.
    """

    found: tuple[Suggestion, ...] = ()
    untried: str | None = None


def without_constraints(plan: Plan, *, tell: Callable[[str], None] | None = None) -> ConstraintCosts:
    """Plans anew, once for each constraint that is tried. `tell` hears of each that is begun."""
    stated = list(_each(plan.fleet.constraints))
    if not stated:
        return ConstraintCosts()
    if len(plan.fleet.nodes) > MOST_NODES_TO_PLAN_ANEW:
        return ConstraintCosts(
            untried="What each constraint costs is not tried: it means to plan anew, which of more than "
            f"{MOST_NODES_TO_PLAN_ANEW} nodes takes too long. Leave one out of nodes.yaml and plan again to see."
        )
    tried = [*([(ALL, UNCONSTRAINED)] if len(stated) > 1 else []), *stated[:MOST]]
    found: list[Suggestion] = []
    for number, (words, constraints) in enumerate(tried, 1):
        if tell is not None:
            tell(f"planning {words}" + (f" ({number} of {len(tried)} at most)" if len(tried) > 1 else ""))
        if (one := _without(plan, words, constraints)).worth > plan.predicted.objective * (1 + WORTHWHILE):
            found.append(one)
        elif words == ALL:
            return ConstraintCosts()
    singly = max((one.worth for one in found if one.words != ALL), default=0.0)
    found = [one for one in found if one.words != ALL or one.worth > singly * (1 + WORTHWHILE)]
    more = len(stated) - MOST
    untried = f"Of {len(stated)} constraints the first {MOST} are tried by themselves, the others only together."
    return ConstraintCosts(tuple(sorted(found, key=lambda one: -one.worth)), untried if more > 0 else None)


def has_constraints(constraints: Constraints) -> bool:
    """Say whether there are any to drop: groups by themselves demand nothing."""
    return any(True for _ in _each(constraints))


def _without(plan: Plan, words: str, constraints: Constraints) -> Suggestion:
    """Return what the fleet makes, and is worth, under these."""
    fleet = replace(plan.fleet, constraints=constraints)
    try:
        made = make_plan(fleet, plan.costs, plan.workload, **_asked_of(plan)).predicted  # type: ignore[arg-type]
    except NoFeasiblePlan:
        made = plan.predicted  # found none, and the plan that there is keeps to the fewer constraints, too
    return Suggestion(words, made.samples_per_s, made.objective, None)


def _each(stated: Constraints) -> Iterator[tuple[str, Constraints]]:
    """Return (words, the constraints without it) of each that is stated, as nodes.yaml names it."""
    for i, pin in enumerate(stated.pins):
        pins = stated.pins[:i] + stated.pins[i + 1 :]
        yield f"without constraints.pin[{i}] ({_pinned(pin)})", replace(stated, pins=pins)
    for i, (a, b) in enumerate(stated.forbid):
        forbid = stated.forbid[:i] + stated.forbid[i + 1 :]
        yield f"without constraints.forbid[{i}] ({a} and {b} apart)", replace(stated, forbid=forbid)
    for i, (a, b) in enumerate(stated.apart):
        apart = stated.apart[:i] + stated.apart[i + 1 :]
        yield f"without constraints.apart[{i}] ({a} and {b} apart)", replace(stated, apart=apart)
    if stated.min_clusters > 1:
        yield f"without constraints.min_clusters ({stated.min_clusters})", replace(stated, min_clusters=1)


def _pinned(pin: Pin) -> str:
    at = [] if pin.stage is None else ["the last stage" if pin.stage == LAST else f"stage {pin.stage}"]
    of = [] if pin.cluster is None else [f"cluster {pin.cluster}"]
    return f"{pin.node} in {' of '.join([*at, *of])}"
