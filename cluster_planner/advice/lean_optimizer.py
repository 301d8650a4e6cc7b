"""What the optimizer's memory costs a plan: the same job as if its optimizer kept nothing beside the weights.

Which optimizer a job has is never the search's choice, since another one learns differently and the objective does not
know by how much. Its memory is advised on instead: where memory limits a plan, or nothing fits at all, the same is
planned with costs without it, and what that would bring is said. A factored optimizer such as Adafactor keeps a row and
a column of each matrix, next to nothing, so it is the one that is named.
"""

from collections.abc import Sequence
from dataclasses import replace

from cluster_planner.formatting import format_rate
from cluster_planner.inputs.fleet import Fleet
from cluster_planner.inputs.model_costs import ModelCosts, Workload
from cluster_planner.inputs.spans import SpanCosts
from cluster_planner.pipeline.memory_fit import MemoryFit
from cluster_planner.plan import Plan

NOTICED = 0.1
"""An optimizer that keeps less than this part of what the whole model needs is not worth a planning."""

WITH_IT = "an optimizer that keeps next to nothing, such as adafactor"


def without_optimizer_state(costs: ModelCosts, work: Workload) -> tuple[ModelCosts, Workload]:
    """Return the costs of the same model and job as if the optimizer kept nothing."""
    units = tuple(replace(unit, optimizer_bytes=None) for unit in costs.units)
    return replace(costs, units=units), replace(work, optimizer_state_bytes_per_parameter_byte=0.0)


def may_gain(plan: Plan) -> bool:
    """Say whether less of an optimizer may make a better plan: it keeps a good part of what the model needs, and some
    node has too little memory for all of it, so that memory says where the model may be cut.
    """
    costs, work, fleet = plan.costs, plan.workload, plan.fleet
    whole_bytes = MemoryFit(fleet, SpanCosts(costs, work), 1).whole_model_bytes
    lean_bytes = MemoryFit(fleet, SpanCosts(*without_optimizer_state(costs, work)), 1).whole_model_bytes
    limits = any(node.room_bytes < whole_bytes for node in fleet.nodes)
    return limits and whole_bytes - lean_bytes > NOTICED * whole_bytes


def said(samples_per_s: float, worth: float) -> str:
    """Return what planning anew without the optimizer's state brings, to stand behind an advice."""
    figures = f"{format_rate(samples_per_s)} samples/s (worth {format_rate(worth)})"
    return f"; memory limits the plan: with {WITH_IT}, if training learns as well with it, planned anew, {figures}"


def fits_without(fleet: Fleet, costs: ModelCosts, work: Workload, names: Sequence[str], least: int) -> str:
    """Return what to add to an error that these nodes cannot hold the model: that they could without the optimizer's
    state; empty where they could not either.
    """
    fits = MemoryFit(fleet, SpanCosts(*without_optimizer_state(costs, work)), least)
    able = [name for name in names if fits.holds_a_unit(name)]
    return f"; with {WITH_IT}, they would hold it" if able and fits.holds(able) else ""
