"""cluster_planner: groups unequal machines into clusters and cuts a model into stages for them.

Give it a fleet (machines and links), the costs of a model's units and a workload; it returns a plan:
clusters, stages, rings, spares and what to expect of them. It knows no tensor, socket or clock.
"""

from cluster_planner.errors import InvalidInput, NoFeasiblePlan, RavnestError
from cluster_planner.files.yaml_files import load_fleet, load_plan, read_validated, save_fleet, save_plan
from cluster_planner.inputs.fleet import Fleet, Node, NodeData
from cluster_planner.inputs.links import Link, RegionLink
from cluster_planner.inputs.model_costs import ModelCosts, Unit, Workload
from cluster_planner.plan import (
    Cluster,
    ClusterPrediction,
    Plan,
    Prediction,
    Ring,
    Spare,
    Stage,
    StagePrediction,
    validate,
)
from cluster_planner.planner import make_plan

__all__ = [
    "Cluster",
    "ClusterPrediction",
    "Fleet",
    "InvalidInput",
    "Link",
    "ModelCosts",
    "NoFeasiblePlan",
    "Node",
    "NodeData",
    "Plan",
    "Prediction",
    "RavnestError",
    "RegionLink",
    "Ring",
    "Spare",
    "Stage",
    "StagePrediction",
    "Unit",
    "Workload",
    "load_fleet",
    "load_plan",
    "make_plan",
    "read_validated",
    "save_fleet",
    "save_plan",
    "validate",
]
