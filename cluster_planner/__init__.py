"""Groups unequal machines into clusters and cuts a model into stages for them.

In: a fleet (machines and links), the costs of a model's units, and a workload. Out: a plan (clusters, stages, rings and
spares) with what to expect of it and what would make it better. The package knows no tensor, socket or clock.
"""

from cluster_planner.advice.job_changes import Suggestion, most_of_a_round
from cluster_planner.advice.plan_warnings import (
    SingleNodePlan,
    StarvedByData,
    assumed_links,
    better_single_node,
    capped_links,
    demands_beside,
    outdated,
    predicted_again,
    starved_by_data,
)
from cluster_planner.advice.region_places import region_places
from cluster_planner.advice.single_changes import most_helpful_changes
from cluster_planner.advice.warm_spares import shadows_among
from cluster_planner.errors import InvalidInput, NoFeasiblePlan, RavnestError
from cluster_planner.files.conversion import bytes_of_gb, bytes_per_s_of_mbps, flops_per_s_of_gflops, seconds_of_ms
from cluster_planner.files.known_hardware import hardware_named
from cluster_planner.files.schema import AtLeastZero, Positive, Strict, Text
from cluster_planner.files.validation_errors import problems_of
from cluster_planner.files.yaml_files import (
    holds_plan,
    load_fleet,
    load_plan,
    read_validated,
    save_fleet,
    save_plan,
)
from cluster_planner.formatting import format_count, format_rate
from cluster_planner.inputs.constraints import (
    ALL_DAY,
    Constraints,
    Pin,
    common_hours,
    hours_from,
    hours_to,
    part_of_day,
)
from cluster_planner.inputs.fleet import (
    CUDA_HOST_BYTES,
    CUDA_PROCESS_BYTES,
    PROCESS_BYTES,
    Fleet,
    Node,
    NodeData,
    require_node_name,
)
from cluster_planner.inputs.links import DEFAULT_LATENCY_S, DEFAULT_REGION_LATENCY_S, Link, RegionLink
from cluster_planner.inputs.model_costs import (
    MOST_IN_FLIGHT,
    SPLIT_KEEPS,
    SYNCHRONOUS,
    ActivationCheckpointing,
    ModelCosts,
    Schedule,
    SplitBackward,
    Tied,
    Unit,
    Workload,
    held_micro_batches,
)
from cluster_planner.inputs.spans import SpanCosts
from cluster_planner.pipeline.cluster_anew import cluster_at, forbidden, handover_s, samples_per_s, with_cluster
from cluster_planner.pipeline.memory_fit import largest_fitting_window, stage_fits
from cluster_planner.pipeline.swapped_nodes import with_swapped_nodes
from cluster_planner.plan import (
    Cluster,
    ClusterPrediction,
    Plan,
    Prediction,
    Ring,
    Spare,
    Stage,
    StagePrediction,
    common_refinement,
    require_memory,
    validate,
)
from cluster_planner.planner import (
    ConstraintCosts,
    has_constraints,
    improve_plan,
    make_plan,
    with_advice_planned,
    without_constraints,
)
from cluster_planner.predict.objective import averaging_factor, averaging_per_s
from cluster_planner.predict.prediction import Forecast, predict
from cluster_planner.predict.stage_times import (
    WorkTimes,
    bottleneck_s,
    host_key,
    loads_of,
    round_trip_s,
    wanted_window,
    work_times,
)
from cluster_planner.rings import RingMember, RingTraffic, exchange_of, links_of_ring, make_rings, ring_traffic
from cluster_planner.search.best_staleness import STALENESS_PHASE, with_best_staleness
from cluster_planner.search.planned_anew import MOST_NODES_TO_PLAN_ANEW
from cluster_planner.search.steps import Step

__all__ = [  # noqa: RUF022 - grouped by what they are for
    # What a plan is made from: machines, links, hours, constraints, costs.
    "ALL_DAY",
    "ActivationCheckpointing",
    "CUDA_HOST_BYTES",
    "CUDA_PROCESS_BYTES",
    "Constraints",
    "DEFAULT_LATENCY_S",
    "DEFAULT_REGION_LATENCY_S",
    "Fleet",
    "Link",
    "ModelCosts",
    "Node",
    "NodeData",
    "PROCESS_BYTES",
    "Pin",
    "RegionLink",
    "SPLIT_KEEPS",
    "SYNCHRONOUS",
    "Schedule",
    "SpanCosts",
    "SplitBackward",
    "Tied",
    "Unit",
    "Workload",
    "common_hours",
    "held_micro_batches",
    "hours_from",
    "hours_to",
    "part_of_day",
    "require_node_name",
    # The plan.
    "Cluster",
    "ClusterPrediction",
    "Plan",
    "Prediction",
    "Ring",
    "RingMember",
    "RingTraffic",
    "Spare",
    "Stage",
    "StagePrediction",
    "common_refinement",
    "make_rings",
    "require_memory",
    "ring_traffic",
    "starved_by_data",
    "validate",
    # Planning, and what constraints cost.
    "ConstraintCosts",
    "MOST_IN_FLIGHT",
    "MOST_NODES_TO_PLAN_ANEW",
    "STALENESS_PHASE",
    "StarvedByData",
    "Step",
    "hardware_named",
    "has_constraints",
    "improve_plan",
    "make_plan",
    "with_advice_planned",
    "with_best_staleness",
    "without_constraints",
    # One cluster made anew while the others go on.
    "cluster_at",
    "forbidden",
    "handover_s",
    "samples_per_s",
    "shadows_among",
    "with_cluster",
    "with_swapped_nodes",
    # Predicting what given clusters will do.
    "Forecast",
    "WorkTimes",
    "averaging_factor",
    "averaging_per_s",
    "bottleneck_s",
    "exchange_of",
    "host_key",
    "largest_fitting_window",
    "links_of_ring",
    "loads_of",
    "predict",
    "round_trip_s",
    "stage_fits",
    "wanted_window",
    "work_times",
    # Advice on a plan.
    "SingleNodePlan",
    "Suggestion",
    "assumed_links",
    "better_single_node",
    "capped_links",
    "demands_beside",
    "most_helpful_changes",
    "most_of_a_round",
    "outdated",
    "predicted_again",
    "region_places",
    # Files: nodes.yaml, plan.yaml, and other YAML files in the same manner; the units of their keys.
    "AtLeastZero",
    "Positive",
    "Strict",
    "Text",
    "bytes_of_gb",
    "bytes_per_s_of_mbps",
    "flops_per_s_of_gflops",
    "holds_plan",
    "load_fleet",
    "load_plan",
    "problems_of",
    "read_validated",
    "save_fleet",
    "save_plan",
    "seconds_of_ms",
    # How a speed and a number of things read.
    "format_count",
    "format_rate",
    # Errors.
    "InvalidInput",
    "NoFeasiblePlan",
    "RavnestError",
]
