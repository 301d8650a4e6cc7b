"""Whether the nodes of a plan have memory for the stages that it gives them.

Decides it by what the plan itself says of units, workload and windows, since any of them may have been edited. What a
stage needs is decided in spans.py.
"""

import math

from cluster_planner.errors import InvalidInput
from cluster_planner.inputs.spans import SpanCosts
from cluster_planner.plan import Plan


def require_room(plan: Plan) -> None:
    """Raise `InvalidInput`, with the key in plan.yaml, for the first stage that needs more bytes than its node has."""
    spans = SpanCosts(plan.costs, plan.workload)
    for cluster in plan.clusters:
        for index, stage in enumerate(cluster.stages):
            place = index, len(cluster.stages)
            need = spans.stage_memory_bytes(*stage.units, place, cluster.window, recomputes=stage.recomputes)
            has = plan.fleet.node(stage.node).memory_bytes
            if need > has:
                raise InvalidInput(
                    f"is {has / 1e9:g}, but stage {index} of {cluster.name} (units {list(stage.units)}, window "
                    f"{cluster.window}) needs {_enough_gb(need):g} GB there: plan again, or undo the change",
                    key=f"nodes[{stage.node}].memory_gb",
                )


def _enough_gb(need_bytes: int) -> float:
    """To three figures, and never less than is needed."""
    step = 10.0 ** max(0, math.floor(math.log10(need_bytes)) - 2)
    return math.ceil(need_bytes / step) * step / 1e9
