"""What a run does when no cluster is left that trains: it begins again, from its last checkpoint, on the nodes it has.

In: the plan, the nodes that are alive, and the checkpoint of each beginning. Out: how long to wait, the plan to go on
with, or that it is over. Pure. A run whose nodes are all there begins again at most so many times in a row without a
new checkpoint: what ends it each time before that would end it for ever. Where some have gone, that ended it, and it
begins again however often. Where the nodes that are alive cannot train the model it waits for others, for a day at
most: machines at home come and go by the time of day, and a run that waits takes nobody's time.
"""

from collections.abc import Collection
from dataclasses import replace

from cluster_planner import InvalidInput, NoFeasiblePlan, Plan, make_plan, validate

MOST_IN_A_ROW = 4
"""So often a run that has all its nodes begins again without having come to another checkpoint."""

AT_ONE_NODE = 2
"""A run that has all its nodes does without one, if it can, of which a stage has ended it so many times in a row."""

FIRST_WAIT_S = 2.0
LONGEST_WAIT_S = 120.0
"""The wait before each beginning doubles in a row, up to this."""

NODES_WAIT_S = 24 * 3600.0
"""So long a run waits for nodes where those that are alive cannot train the model, and then ends."""

LOOK_FOR_NODES_S = 10.0
"""How often it is looked meanwhile which nodes are alive."""

_GONE = "was not there when the run was planned anew"


class Restarts:
    """Counts how often a run begins again."""

    def __init__(self) -> None:
        self._checkpoint: str | None = None
        self._in_a_row = 0
        self._at: list[str] = []
        """The nodes of the last stages that were lost so."""

    def ended_at(self, node: str) -> bool:
        """After `after`: the run, whose nodes are all there, has lost its last cluster by a stage on this one. Returns
        whether it is to do without that node, if it can. Then it begins again, as if nothing had been tried yet."""
        self._at = [*self._at, node] if self._at[-1:] == [node] else [node]
        if len(self._at) < AT_ONE_NODE:
            return False
        self._at, self._in_a_row = [], 0
        return True

    def after(self, checkpoint: str | None, *, gone: bool) -> float | None:
        """The run has lost its last cluster, and `checkpoint` is its latest; None: there is none, and it begins again
        from nothing. `gone`: a node on which it trained is not there any more.

        Returns the seconds to wait before it begins again; None where it does not.
        """
        if gone or checkpoint != self._checkpoint:  # what ended it before that may have been the same node's going
            self._checkpoint, self._in_a_row, self._at = checkpoint, 0, []
        if gone:
            return FIRST_WAIT_S
        self._in_a_row += 1
        if self._in_a_row > MOST_IN_A_ROW:
            return None
        return min(LONGEST_WAIT_S, FIRST_WAIT_S * 2.0 ** (self._in_a_row - 1))


def nodes_of_stages(plan: Plan) -> set[str]:
    """Return the nodes on which stages of the plan run."""
    return {stage.node for cluster in plan.clusters for stage in cluster.stages}


def look_for_nodes_s(waited_s: float) -> float | None:
    """Return in how many seconds a run looks again for nodes which has waited for so long that some come; None where
    it does not wait any longer.
    """
    return LOOK_FOR_NODES_S if waited_s + LOOK_FOR_NODES_S <= NODES_WAIT_S else None


def plan_among(plan: Plan, alive: Collection[str]) -> Plan:
    """Return the plan where a run can begin with it on the nodes that are `alive`, else a new one for those that are.

    Raises NoFeasiblePlan as `plan_for` does.
    """
    return plan if can_begin(plan, alive) else plan_for(plan, alive)


def can_begin(plan: Plan, alive: Collection[str]) -> bool:
    """Say whether all clusters of the plan can be started on the nodes that are `alive`.

    A plan that a run has changed may be none to begin with: two clusters name one node where one of them was away, and
    had given it to the other (replacing.py).
    """
    try:
        validate(plan)
    except InvalidInput:
        return False
    return nodes_of_stages(plan) <= set(alive)


def plan_for(plan: Plan, alive: Collection[str]) -> Plan:
    """Return a new plan for those nodes of another one that are `alive`.

    Nodes that are not stay in the new plan as spares, so that they can stand in for others when they are back. It keeps
    what the user demands where these nodes can: pins of nodes that are gone are dropped, and fewer clusters and shorter
    pipelines than were asked for are better than none. The constraints of the new plan are those that it keeps, since
    else it could not be read again. Raises NoFeasiblePlan where the nodes that are alive cannot train the model.
    """
    gone = [node.name for node in plan.fleet.nodes if node.name not in alive]
    if len(gone) == len(plan.fleet.nodes):
        raise NoFeasiblePlan(f"no node of the plan is there: {', '.join(gone)}", key="nodes")
    # What is too small for any unit gets no stage; what is known of its links says something about the others' still.
    shrunk = tuple(replace(node, memory_bytes=1) if node.name in gone else node for node in plan.fleet.nodes)
    rules = plan.fleet.constraints
    least, pins = rules.min_clusters, tuple(pin for pin in rules.pins if pin.node not in gone)
    given = {"job": plan.job, "job_file": plan.job_file, "seed": plan.seed}
    tries = dict.fromkeys([(least, plan.min_stages), (1, plan.min_stages), (1, 1)])
    for clusters, stages in tries:
        kept = replace(rules, min_clusters=clusters, pins=pins)
        fleet = replace(plan.fleet, nodes=shrunk, constraints=kept)
        try:
            new = make_plan(fleet, plan.costs, plan.workload, min_stages=stages, **given)  # type: ignore[arg-type]
        except NoFeasiblePlan:
            if (clusters, stages) == (1, 1):
                raise
        else:
            break
    spares = tuple(replace(each, reason=_GONE if each.node in gone else each.reason) for each in new.spares)
    as_before = replace(plan.fleet, constraints=kept)
    return replace(new, fleet=as_before, spares=spares, data=plan.data, min_stages=plan.min_stages)
