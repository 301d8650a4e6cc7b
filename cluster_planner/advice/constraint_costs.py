"""What the constraints cost: the fleet planned anew without each of them, and without all.

Decides which are tried: of fleets of up to MOST_NODES nodes, the first MOST that are stated, each by itself, and, where
there are several, all together, since one may cost nothing as long as another stands. What is not tried is said. Hours
and what may be used of a node are properties of the node, and stay.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from cluster_planner.advice.suggestion import WORTHWHILE, Suggestion
from cluster_planner.errors import NoFeasiblePlan
from cluster_planner.inputs.constraints import LAST, UNCONSTRAINED, Constraints, Pin
from cluster_planner.plan import Plan
from cluster_planner.planner import make_plan

MOST_NODES = 24
MOST = 12
ALL = "without any of the constraints"


@dataclass(frozen=True)
class Relaxed:
    """What is worthwhile to drop, the most valuable first, and what was not tried and why, if anything was not."""

    found: tuple[Suggestion, ...] = ()
    untried: str | None = None


def without_constraints(plan: Plan, *, min_stages: int = 2, tell: Callable[[str], None] | None = None) -> Relaxed:
    """Plans anew, once for each constraint that is tried. `min_stages` as the plan was made with; `tell` hears of each
    that is begun.
    """
    stated = list(_each(plan.fleet.constraints))
    if not stated:
        return Relaxed()
    if len(plan.fleet.nodes) > MOST_NODES:
        return Relaxed(
            untried=f"What each constraint costs is not tried: it means to plan anew, which of more than {MOST_NODES}"
            " nodes takes too long. Leave one out of nodes.yaml and plan again to see."
        )
    tried = stated[:MOST]
    if len(stated) > 1:
        tried.append((ALL, UNCONSTRAINED))
    found: list[Suggestion] = []
    for words, constraints in tried:
        if tell is not None:
            tell(f"planning {words}")
        best = max((one.worth for one in found), default=plan.predicted.objective)
        least = best if words == ALL else plan.predicted.objective
        if (one := _without(plan, words, constraints, min_stages)).worth > least * (1 + WORTHWHILE):
            found.append(one)
    more = len(stated) - MOST
    untried = f"Of {len(stated)} constraints the first {MOST} are tried by themselves, the others only together."
    return Relaxed(tuple(sorted(found, key=lambda one: -one.worth)), untried if more > 0 else None)


def are_stated(constraints: Constraints) -> bool:
    """Whether there are any to drop: groups by themselves demand nothing."""
    return any(True for _ in _each(constraints))


def _without(plan: Plan, words: str, constraints: Constraints, min_stages: int) -> Suggestion:
    """What the fleet makes, and is worth, under these."""
    fleet = replace(plan.fleet, constraints=constraints)
    given = {"job": plan.job, "job_file": plan.job_file, "seed": plan.seed, "min_stages": min_stages}
    try:
        made = make_plan(fleet, plan.costs, plan.workload, **given).predicted  # type: ignore[arg-type]
    except NoFeasiblePlan:
        made = plan.predicted  # found none, and the plan that there is keeps to the fewer constraints, too
    return Suggestion(words, made.samples_per_s, made.objective, None)


def _each(stated: Constraints) -> Iterator[tuple[str, Constraints]]:
    """(words, the constraints without it) of each that is stated, as nodes.yaml names it."""
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
