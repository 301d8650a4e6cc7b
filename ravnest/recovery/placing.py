"""Where the stages of a lost cluster are started anew, and whether that pays within the rest of the run. Pure.

In: the plan, the nodes that can run stages, the clusters that are in the run, and how long it goes on. Out: a
`Placement`, or in words why there is none. They are tried in this order:

    lost stages at their warm spares  ─►  each stage on its own node  ─►  lost ones on cold spares
    ─►  other cuts, over the nodes that are left and the spares

A placement pays where what its cluster makes, from its start until the run ends, is an update at least, and where the
fleet makes more with it. Every cluster gives each round an update at least, so one that was cut anew for fewer nodes,
and takes longer for an update than the others for a round, makes them wait.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from cluster_planner import (
    Cluster,
    Fleet,
    Plan,
    SpanCosts,
    Stage,
    cluster_at,
    forbidden,
    handover_s,
    samples_per_s,
    stage_fits,
    with_cluster,
)
from ravnest.formatting import duration
from ravnest.pipeline import stage_name, stage_place

START_S = 15.0
"""How long processes take from the decision until they listen, beside what their state takes on its way: an actor of
Ray, Python, torch, the job. On two cores that other programs used, too, it was 14.8, 17.9 and 18.8 s
(tests/support/recorded_run)."""

WARM_S = 2.0
"""How long it takes where no process has to be started: warm spares, or ready processes, take all lost places."""

RETURNS_S = 10.0
"""So long the rounds wait for a lost cluster whose warm spares take its places: five times what that takes."""

READY_AFTER_S = 20.0
"""A stage trains for so long before a process is made ready beside it, which takes a core for some seconds."""

SPARE_AGAIN_S = 60.0
"""A warm spare that could not start, or was lost, is started again after this time."""

WORTHWHILE = 1.1
"""Other cuts are taken instead of those that there are where they make so many times the samples."""

FURTHER = 0.02
"""With one more cluster all make at least this part more: each costs the rings something."""

How = Literal["own nodes", "warm spares", "spares", "other cuts", "nodes that came"]

_UNUSED = "its cluster does without it"


@dataclass(frozen=True)
class Placement:
    """A plan in which all stages of a cluster have nodes, and what to expect of it."""

    plan: Plan
    how: How
    change_s: float
    """How long it takes, as predicted, until the cluster trains."""
    gained_per_s: float
    """The samples/s that the cluster is predicted to make."""
    warm: tuple[str, ...] = ()
    """The stages whose places are taken by their warm spares."""
    at_once: bool = False
    """Whether no process has to be started: those of all its stages are there."""

    def gained(self, rest_s: float) -> float:
        """Return the samples that it makes in the rest of the run."""
        return max(0.0, rest_s - self.change_s) * self.gained_per_s


@dataclass(frozen=True)
class Place:
    """A placement, and why the cluster does not go back to where it was; empty where it does."""

    placement: Placement
    reason: str


@dataclass(frozen=True)
class Nodes:
    """The nodes that a cluster may be started on: its `own`, and those of nobody, the spares.

    `warm` has the nodes of warm spares by the lost stage of which they hold the anchor; they are among the spares.
    `there` names the stages that need no new process on their own nodes: they stand by. On the nodes `ready` a process
    waits that can be any stage.
    """

    own: Collection[str]
    spare: Collection[str] = ()
    warm: Mapping[str, str] = field(default_factory=dict)
    there: Collection[str] = ()
    ready: Collection[str] = ()


def place(plan: Plan, cluster: str, nodes: Nodes, others: Collection[str], *, anew: bool = False) -> Place | str:
    """Return the first placement of the cluster that is possible, or in words why there is none.

    `others`: the clusters that are in the run. `anew`: the cuts were made for fewer nodes, so that others are tried
    beside them.
    """
    nodes = replace(nodes, warm=_allowed(plan, cluster, nodes))
    same, reason = _same_cuts(plan, cluster, nodes)
    first = None if same is None else placement(plan, same, others)
    if first is not None and same is not None and _all_there(same, nodes):
        first = replace(first, at_once=True, change_s=first.change_s - START_S + WARM_S)
    warm = tuple(sorted(stage for stage in nodes.warm if stage_place(stage)[0] == cluster))
    if first is not None and same is not None and warm:
        cold = [
            stage.node
            for index, stage in enumerate(same.stages)
            if stage.node not in nodes.own and stage_name(cluster, index) not in warm
        ]
        found = replace(first, warm=warm)
        if not cold:
            found = replace(found, how="warm spares", at_once=True, change_s=WARM_S)
        return Place(found, reason)
    if first is not None and not anew:
        return Place(first, reason)
    other = cluster_at(plan, cluster, sorted(nodes.own), sorted(nodes.spare))
    if other is None:
        return f"{reason}, and the nodes that are left cannot hold the model" if first is None else Place(first, reason)
    found = made_ready(placement(plan, other, others), cluster, nodes.ready)
    if first is None or found.gained_per_s > WORTHWHILE * first.gained_per_s:
        return Place(found, reason or "more nodes are there than before")
    return Place(first, reason)


def placement(plan: Plan, made: Cluster, others: Collection[str], fleet: Fleet | None = None) -> Placement:
    """Return the plan with this cluster, and what is to be expected of it beside the `others`.

    `fleet`: what the nodes can do, where that is not what the plan says.
    """
    before = {cluster.name: cluster for cluster in plan.clusters}.get(made.name)
    new = with_cluster(plan, made, _UNUSED)
    how: How = "nodes that came" if before is None else "other cuts"
    if before is not None and [stage.units for stage in made.stages] == [stage.units for stage in before.stages]:
        how = "own nodes" if made == before else "spares"
    gained = samples_per_s(new, {*others, made.name}, fleet)[made.name]
    return Placement(new, how, START_S + handover_s(new, made.name, others), gained)


def made_ready(found: Placement, cluster: str, ready: Collection[str]) -> Placement:
    """Return the placement, which is sooner where a process waits on the node of each stage: `ready` are such nodes."""
    if not all(stage.node in ready for stage in found.plan.cluster(cluster).stages):
        return found
    return replace(found, at_once=True, change_s=found.change_s - START_S + WARM_S)


def _one_each(warm: Mapping[str, str]) -> dict[str, str]:
    """The warm spares without those that are needed for another stage already: a node takes one place."""
    first = {node: stage for stage, node in sorted(warm.items(), reverse=True)}
    return {stage: node for node, stage in sorted(first.items())}


def _allowed(plan: Plan, cluster: str, nodes: Nodes) -> dict[str, str]:
    """The warm spares of the cluster that constraints let into it together, each for one stage."""
    warm = {stage: node for stage, node in _one_each(nodes.warm).items() if stage_place(stage)[0] == cluster}
    stages, kept = plan.cluster(cluster).stages, dict[str, str]()
    at = {
        stage.node: index
        for index, stage in enumerate(stages)
        if stage.node in nodes.own and stage_name(cluster, index) not in warm
    }
    for stage, node in warm.items():
        if forbidden(plan.fleet, {**at, node: stage_place(stage)[1]}, len(stages)) is None:
            at[node], kept[stage] = stage_place(stage)[1], node
    return kept


def _all_there(made: Cluster, nodes: Nodes) -> bool:
    """Whether no stage of the cluster needs a new process."""
    stages = {stage_name(made.name, index): stage.node for index, stage in enumerate(made.stages)}
    return all(
        nodes.warm.get(name) == node or (name in nodes.there and node in nodes.own) or node in nodes.ready
        for name, node in stages.items()
    )


def beside(plan: Plan) -> set[str]:
    """The stages of the plan beside whose process a ready one finds room in the memory of their nodes.

    Where they compute on a device, a ready process takes nothing of its memory, but of the machine's own.
    """
    spans, found = SpanCosts(plan.costs, plan.workload), set()
    for cluster in plan.clusters:
        for index, stage in enumerate(cluster.stages):
            place_ = index, len(cluster.stages)
            node = plan.fleet.node(stage.node)
            needed = spans.stage_memory_bytes(*stage.units, place_, cluster.window, recomputes=stage.recomputes)
            has: float = node.room_bytes
            if node.device != "cpu":
                needed, has = spans.stage_host_bytes(*stage.units, place_, cluster.window), node.host_room_bytes
            if needed + plan.workload.process_bytes <= has:
                found.add(stage_name(cluster.name, index))
    return found


def refused(found: Placement, rest_s: float) -> str | None:
    """Return in words why a placement does not pay, where the run goes on for `rest_s` seconds; None where it does."""
    work = found.plan.workload
    if math.isinf(rest_s) or found.gained(rest_s) >= work.micro_batch * work.update_every:
        return None
    return f"it would train in {duration(found.change_s)}, and the run ends in {duration(max(0.0, rest_s))}"


def slows_others(found: Placement, planned: Cluster, others: Collection[str]) -> str | None:
    """Return in words why the fleet makes no more with a cluster that is not as it was, where that is so.

    None where it makes more with it, or at least as much as with the cluster as it was `planned` at first.
    `others`: the clusters that are in the run.
    """
    cluster = planned.name
    if found.how in ("own nodes", "warm spares") or not others:
        return None
    alone = sum(samples_per_s(found.plan, others).values())
    together = sum(samples_per_s(found.plan, {*others, cluster}).values())
    if together >= (1.0 + FURTHER) * alone:
        return None
    if together >= sum(samples_per_s(with_cluster(found.plan, planned, _UNUSED), {*others, cluster}).values()):
        return None
    made = len(found.plan.cluster(cluster).stages)
    return f"the others would wait for it: {together:.3g} samples/s with its {made} nodes, {alone:.3g} without"


def _same_cuts(plan: Plan, cluster: str, nodes: Nodes) -> tuple[Cluster | None, str]:
    """The cluster with its own cuts: a lost stage at its warm spare, each other one on its own node, else on a spare
    that can hold it, the fastest one that constraints let into the cluster.

    And why it is not as it was, or why there is none.
    """
    old = plan.cluster(cluster)
    spans = SpanCosts(plan.costs, plan.workload)
    free = set(nodes.spare) - set(nodes.warm.values())
    names = [stage_name(cluster, index) for index in range(len(old.stages))]
    at = {stage.node: i for i, stage in enumerate(old.stages) if stage.node in nodes.own and names[i] not in nodes.warm}
    at |= {nodes.warm[name]: i for i, name in enumerate(names) if name in nodes.warm}
    stages: list[Stage] = []
    gone = []
    for index, stage in enumerate(old.stages):
        name, place_ = stage_name(cluster, index), (index, len(old.stages))
        if name in nodes.warm:
            stages.append(replace(stage, node=nodes.warm[name]))
            gone.append(f"{nodes.warm[name]!r} is a warm spare of {name}")
            continue
        if stage.node in nodes.own:
            stages.append(stage)
            continue
        fitting = [n for n in plan.fleet.nodes if n.name in free and stage_fits(n, spans, stage, place_, old.window)]
        fitting.sort(key=lambda node: -node.flops_per_s)
        best = next((n for n in fitting if forbidden(plan.fleet, {**at, n.name: index}, len(names)) is None), None)
        lacks = f"node {stage.node!r} of {name} is not there"
        if best is None:
            may = "that stage" if not fitting else "that stage, as constraints have it"
            return None, f"{lacks}, and no spare can hold {may}"
        gone.append(lacks)
        at[best.name] = index
        free.discard(best.name)
        stages.append(replace(stage, node=best.name))
    return replace(old, stages=tuple(stages)), "; ".join(gone)
