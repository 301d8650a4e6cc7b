"""Whether fleet, model and workload fit each other at all, and what is lacking where they do not.

In: a fleet, costs and constraints. Out: nothing, or a `NoFeasiblePlan` with its message. What holds the model is
computed in pipeline/memory_fit.py.
"""

from collections.abc import Sequence

import numpy as np

from cluster_planner.advice.lean_optimizer import fits_without
from cluster_planner.errors import NoFeasiblePlan
from cluster_planner.formatting import format_count, format_rate
from cluster_planner.inputs.constraints import LAST
from cluster_planner.inputs.fleet import CUDA_HOST_BYTES, Fleet, Node
from cluster_planner.inputs.model_costs import ModelCosts
from cluster_planner.inputs.spans import SpanCosts
from cluster_planner.pipeline.memory_fit import MemoryFit


def require_feasible(fleet: Fleet, costs: ModelCosts, memory_fit: MemoryFit, able: Sequence[str], least: int) -> None:
    """Raise `NoFeasiblePlan` where it can be told before any search. `able`: the nodes that can hold a unit."""
    if len(costs.units) < least:
        raise NoFeasiblePlan(
            f"the model has {format_count(len(costs.units), 'unit')} and cannot be cut into {least} stages; "
            f"a cluster has {least} at the least"
        )
    if memory_fit.lacks_host_memory:
        raise NoFeasiblePlan(_no_host_memory(fleet, memory_fit))
    biggest = max(fleet.nodes, key=lambda node: node.room_bytes)
    has = f"the largest node, {biggest.name}, has {_gb(biggest.room_bytes)}"
    if not able:
        raise NoFeasiblePlan(
            f"no node has memory for any unit: the smallest needs {_gb(memory_fit.smallest_unit_bytes)}, {has}"
            f"{fits_without(fleet, costs, memory_fit.workload, fleet.names, least)}"
        )
    if biggest.room_bytes < memory_fit.largest_unit_bytes:
        raise NoFeasiblePlan(
            f"no node has memory for the largest unit: it needs {_gb(memory_fit.largest_unit_bytes)}, {has}"
            f"{fits_without(fleet, costs, memory_fit.workload, fleet.names, least)}"
        )
    if not memory_fit.holds(able):
        raise NoFeasiblePlan(no_fit(fleet, costs, memory_fit, able, least))


def _no_host_memory(fleet: Fleet, memory_fit: MemoryFit) -> str:
    counted = [node for node in fleet.nodes if node.host_memory_bytes is not None]
    largest = max(counted, key=lambda node: node.host_room_bytes)
    return (
        "the GPUs could hold the model, but the memory of their machines (host_memory_gb) is too small for averaging"
        f" and for what waits to be sent: a stage of one unit needs {_gb(memory_fit.least_host_bytes())} of it or more,"
        f" and {_gb(CUDA_HOST_BYTES)} for its process; the largest, of {largest.name}, is"
        f" {_gb(largest.host_memory_bytes or 0)}"
    )


def no_fit(fleet: Fleet, costs: ModelCosts, memory_fit: MemoryFit, able: Sequence[str], least: int) -> str:
    """Return why these nodes together hold no model."""
    if len(able) < least:
        return (
            f"a cluster needs {least} nodes at the least, and {format_count(len(able), 'node')} of "
            f"{len(fleet.nodes)} can hold a unit ({_gb(memory_fit.smallest_unit_bytes)})"
        )
    need = memory_fit.whole_model_bytes
    have = sum(fleet.node(name).room_bytes for name in able)
    own = min(have, memory_fit.process_bytes * len(able))
    return (
        f"the nodes together cannot hold the model: in one piece it needs {_gb(need)} "
        f"(weights {_gb(costs.parameter_bytes)}, with copies, gradients, optimizer state and activations), and "
        f"the {format_count(len(able), 'node')} that can hold a unit have {_gb(have)}, {_gb(own)} of it for "
        "their processes, and take whole units only; add nodes or memory, or lower micro_batch, max_staleness or "
        f"max_lag{fits_without(fleet, costs, memory_fit.workload, fleet.names, least)}"
    )


def require_possible(fleet: Fleet, spans: SpanCosts, able: Sequence[str], least: int) -> None:
    """Raise `NoFeasiblePlan`, with the key, for a constraint that no plan can meet, whatever else is demanded."""
    demanded = fleet.constraints
    if demanded.min_clusters > len(able) // least:
        raise NoFeasiblePlan(
            f"must be {len(able) // least} at most, not {demanded.min_clusters}: "
            f"{format_count(len(able), 'node')} can hold a unit, "
            f"and a cluster has {format_count(least, 'node')} at the least",
            key="constraints.min_clusters",
        )
    able_names = frozenset(able)
    for i, pin in enumerate(demanded.pins):
        has = _has(fleet.node(pin.node))
        if pin.node not in able_names:
            raise NoFeasiblePlan(f"no unit fits: {has}", key=f"constraints.pin[{i}].node")
        if pin.stage is None:
            continue
        if isinstance(pin.stage, int) and pin.stage >= spans.count:
            raise NoFeasiblePlan(
                f"must be 'last' or below {spans.count}, the number of the model's units, not {pin.stage}",
                key=f"constraints.pin[{i}].stage",
            )
        need = _least_bytes(spans, pin.stage)
        if need > fleet.node(pin.node).room_bytes:
            raise NoFeasiblePlan(
                f"stage {pin.stage} needs {_gb(need)} at the least, {has}", key=f"constraints.pin[{i}].stage"
            )
    if least > 1:
        _require_partners(fleet, able, least)


def _require_partners(fleet: Fleet, able: Sequence[str], least: int) -> None:
    """Raise `NoFeasiblePlan` for a node that has to run a stage and may share a cluster with no other."""
    numbers = sorted(fleet.arrays.number_of[name] for name in able)
    parts = fleet.rules.atoms(numbers)
    for i, pin in enumerate(fleet.constraints.pins):
        own = (fleet.arrays.number_of[pin.node],)
        if own not in parts:
            continue  # it is pinned to one cluster with others
        if not any(part != own and fleet.rules.allows((*own, *part)) for part in parts):
            raise NoFeasiblePlan(
                f"{pin.node} would be alone: constraints and hours let no other node that can hold a unit join its "
                f"cluster, and a cluster needs {least} nodes at the least",
                key=f"constraints.pin[{i}].node",
            )


def _least_bytes(spans: SpanCosts, stage: int | str) -> int:
    """Return what a stage of one unit needs there, with one micro-batch in flight."""
    work = spans.workload
    in_flight = work.update_every if work.schedule == "gpipe" else 1
    table = spans.memory_table(in_flight, recomputes=work.activation_checkpointing == "always")
    if work.activation_checkpointing == "auto":
        table = np.minimum(table, spans.memory_table(in_flight, recomputes=True))
    if stage == 0:
        return int(table[0].min())
    return int(table[:, -1].min() if stage == LAST else table[:, 1:].min())


def no_fit_for_constraints(fleet: Fleet) -> str:
    """Return what to try where a search with constraints found no plan."""
    demanded, given = fleet.constraints, []
    for key, states in (
        ("min_clusters", demanded.min_clusters > 1),
        ("forbid", demanded.forbid),
        ("apart", demanded.apart),
        ("pin", demanded.pins),
    ):
        given += [key] if states else []
    given += ["nodes[].hours"] if fleet.rules.count_hours else []
    return (
        f"no plan was found that meets all of them ({', '.join(given)}); with fewer of them, or more memory, there may "
        "be one"
    )


def no_common_hours() -> str:
    """Return what to say where hours are all that keeps nodes apart."""
    return (
        "no cluster that holds the model has an hour of the day at which all its nodes are there (hours): let more "
        "nodes be there at the same time"
    )


def _has(node: Node) -> str:
    own = "" if node.host_memory_bytes is None else f", and {_gb(node.host_memory_bytes)} of its machine's own"
    return f"{node.name} has {_gb(node.room_bytes)}{own}"


def _gb(amount: int) -> str:
    return f"{format_rate(amount / 1e9)} GB"
