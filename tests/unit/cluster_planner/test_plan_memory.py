from collections.abc import Callable
from dataclasses import replace

import pytest

from cluster_planner.errors import InvalidInput, NoFeasiblePlan
from cluster_planner.inputs.fleet import CUDA_HOST_BYTES, CUDA_PROCESS_BYTES, PROCESS_BYTES, Fleet, Node
from cluster_planner.inputs.model_costs import ModelCosts, Workload
from cluster_planner.inputs.spans import SpanCosts
from cluster_planner.plan import Plan, require_memory
from cluster_planner.planner import make_plan


@pytest.fixture
def plan(home: Fleet, make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]) -> Plan:
    return make_plan(home, make_model(8), make_workload(), job={}, job_file="job.yaml", min_stages=2)


def with_memory(plan: Plan, name: str, memory_bytes: int) -> Plan:
    nodes = tuple(replace(n, memory_bytes=memory_bytes) if n.name == name else n for n in plan.fleet.nodes)
    return replace(plan, fleet=replace(plan.fleet, nodes=nodes))


def test_each_node_needs_exactly_what_its_stage_takes(plan: Plan) -> None:
    require_memory(plan)
    for cluster, predicted in zip(plan.clusters, plan.predicted.clusters, strict=True):
        for index, (stage, costs) in enumerate(zip(cluster.stages, predicted.stages, strict=True)):
            require_memory(with_memory(plan, stage.node, costs.memory_bytes))
            with pytest.raises(InvalidInput, match=f"but stage {index} of {cluster.name} ") as caught:
                require_memory(with_memory(plan, stage.node, costs.memory_bytes - 1))
            assert caught.value.key == f"nodes[{stage.node}].memory_gb"


def test_what_is_said_to_be_needed_is_enough(plan: Plan) -> None:
    name = plan.clusters[0].stages[0].node
    with pytest.raises(InvalidInput) as caught:
        require_memory(with_memory(plan, name, 10**7))
    said = caught.value.message
    assert said.startswith("is 0.01, but stage 0 of c0 (units [0, ")
    enough_gb = float(said.partition(" needs ")[2].split()[0])
    require_memory(with_memory(plan, name, round(enough_gb * 1e9)))


def test_a_wider_window_needs_more_memory(plan: Plan) -> None:
    (first, *others) = plan.clusters
    held = plan.predicted.clusters[0].stages[0].memory_bytes
    tight = with_memory(plan, first.stages[0].node, held)
    with pytest.raises(InvalidInput, match=f"window {first.window + 1}"):
        require_memory(replace(tight, clusters=(replace(first, window=first.window + 1), *others)))


def test_on_a_gpu_a_plan_leaves_what_its_process_takes_there(
    make_model: Callable[..., ModelCosts], make_node: Callable[..., Node], make_workload: Callable[..., Workload]
) -> None:
    work, costs = make_workload(), make_model(8)
    needed = SpanCosts(costs, work).memory_bytes(0, 8, 1)
    beyond = CUDA_PROCESS_BYTES - PROCESS_BYTES
    gpu = make_node("a", device="cuda:0", memory_bytes=needed + beyond)
    plan = make_plan(Fleet((gpu,)), costs, work, job={}, job_file="job.yaml")
    require_memory(plan)
    less = replace(gpu, memory_bytes=needed + beyond - 1)
    with pytest.raises(NoFeasiblePlan):
        make_plan(Fleet((less,)), costs, work, job={}, job_file="job.yaml")
    with pytest.raises(InvalidInput, match="needs") as caught:
        require_memory(replace(plan, fleet=Fleet((less,))))
    assert caught.value.key == "nodes[a].memory_gb"
    measured = Fleet((replace(less, process_bytes=PROCESS_BYTES),))
    assert make_plan(measured, costs, work, job={}, job_file="job.yaml").clusters


def test_a_gpu_s_stage_fits_its_machine_s_own_memory_too(
    make_model: Callable[..., ModelCosts], make_node: Callable[..., Node], make_workload: Callable[..., Workload]
) -> None:
    """Each GPU has room for all units, and its machine for what three of eight hold in averaging."""
    work, costs = make_workload(average_every=10**6), make_model(8, boundary_bytes=10, boundary_gradient_bytes=10)
    spans = SpanCosts(costs, work)

    def planned(host_memory_bytes: int | None) -> Plan:
        nodes = [
            make_node(name, device="cuda:0", memory_bytes=10**10, host_memory_bytes=host_memory_bytes)
            for name in "abcd"
        ]
        return make_plan(Fleet(tuple(nodes)), costs, work, job={}, job_file="job.yaml")

    def longest(plan: Plan) -> int:
        return max(end - start for cluster in plan.clusters for stage in cluster.stages for start, end in [stage.units])

    assert longest(planned(None)) > 3
    most = spans.host_bytes(1, 4, work.largest_window)
    plan = planned(CUDA_HOST_BYTES + most)
    assert longest(plan) <= 3
    require_memory(plan)
    (cluster,) = plan.clusters
    widest = max(cluster.stages, key=lambda stage: stage.units[1] - stage.units[0])
    needed = spans.host_bytes(*widest.units, cluster.window)
    nodes = [
        replace(node, host_memory_bytes=CUDA_HOST_BYTES + needed - 1) if node.name == widest.node else node
        for node in plan.fleet.nodes
    ]
    with pytest.raises(InvalidInput, match="of its machine's own memory") as caught:
        require_memory(replace(plan, fleet=Fleet(tuple(nodes))))
    assert caught.value.key == f"nodes[{widest.node}].host_memory_gb"
    with pytest.raises(NoFeasiblePlan, match=r"the memory of their machines \(host_memory_gb\) is too small"):
        planned(CUDA_HOST_BYTES + most // 3)
