"""Whether fleet, model and workload fit each other at all, and what is lacking where they do not.

Decides the words of `NoFeasiblePlan` only; what holds the model is decided in holding.py.
"""

from collections.abc import Sequence

from cluster_planner.costs import ModelCosts
from cluster_planner.errors import NoFeasiblePlan
from cluster_planner.fleet import Fleet
from cluster_planner.holding import Holding


def require_feasible(fleet: Fleet, costs: ModelCosts, holding: Holding, able: Sequence[str], least: int) -> None:
    """Raise `NoFeasiblePlan` where it can be told before any search. `able`: the nodes that can hold a unit."""
    if len(costs.units) < least:
        raise NoFeasiblePlan(
            f"the model has {_counted(len(costs.units), 'unit')} and cannot be cut into {least} stages; "
            f"a cluster has {least} at the least"
        )
    biggest = max(fleet.nodes, key=lambda node: node.memory_bytes)
    has = f"the largest node, {biggest.name}, has {_gb(biggest.memory_bytes)}"
    if not able:
        raise NoFeasiblePlan(
            f"no node has memory for any unit: the smallest needs {_gb(holding.smallest_unit_bytes)}, {has}"
        )
    if biggest.memory_bytes < holding.largest_unit_bytes:
        raise NoFeasiblePlan(
            f"no node has memory for the largest unit: it needs {_gb(holding.largest_unit_bytes)}, {has}"
        )
    if not holding.holds(able):
        raise NoFeasiblePlan(no_fit(fleet, costs, holding, able, least))


def no_fit(fleet: Fleet, costs: ModelCosts, holding: Holding, able: Sequence[str], least: int) -> str:
    """Why these nodes together hold no model."""
    if len(able) < least:
        return (
            f"a cluster needs {least} nodes at the least, and {_counted(len(able), 'node')} of "
            f"{len(fleet.nodes)} can hold a unit ({_gb(holding.smallest_unit_bytes)})"
        )
    need = holding.whole_model_bytes
    have = sum(fleet.node(name).memory_bytes for name in able)
    return (
        f"the nodes together cannot hold the model: in one piece it needs {_gb(need)} "
        f"(weights {_gb(costs.parameter_bytes)}, with copies, gradients, optimizer state and activations), and "
        f"the {_counted(len(able), 'node')} that can hold a unit have {_gb(have)}, each with its own process "
        "and whole units only; add nodes or memory, or lower micro_batch, max_staleness or max_lag"
    )


def _counted(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def _gb(amount: int) -> str:
    return f"{amount / 1e9:.3g} GB"
