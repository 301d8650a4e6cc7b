from dataclasses import replace
from pathlib import Path

from cluster_planner import CUDA_HOST_BYTES, PROCESS_BYTES, Fleet, Link, Node, SpanCosts
from ravnest.profiling.findings import requirements_of_fleet, requirements_of_members, requirements_of_plan
from tests.support.local import captured_job, plan_with, tiny_job


def test_a_plan_needs_neighbours_ring_members_and_the_memory_of_its_stages() -> None:
    job = tiny_job()
    captured = captured_job(job)
    count = len(captured.units)
    plan = plan_with(job, captured, [[count // 3, 2 * count // 3], [count // 2]])
    needs = requirements_of_plan(plan)
    assert [node.name for node in needs.nodes] == ["n00", "n01", "n02", "n10", "n11"]
    assert {("n00", "n01"), ("n01", "n02"), ("n10", "n11")} <= set(needs.pairs)
    assert {("n00", "n10"), ("n02", "n11")} <= set(needs.pairs)  # of one ring each
    assert ("n00", "n02") not in needs.pairs
    assert needs.readers == {"n00", "n02", "n10", "n11"}
    assert needs.memory_bytes["n01"] == plan.predicted.clusters[0].stages[1].memory_bytes
    assert Path(plan.job_file).is_file()


def test_a_list_of_nodes_needs_all_pairs_and_a_long_one_a_sample() -> None:
    nodes = [
        Node(name=f"n{i:02}", flops_per_s=1.0, memory_bytes=1, up_bytes_per_s=1.0, down_bytes_per_s=1.0)
        for i in range(30)
    ]
    few = requirements_of_fleet(Fleet(tuple(nodes[:4]), (Link("n02", "n01", 0.5, 1.0),)))
    assert len(few.pairs) == 6
    assert few.latencies_s == {("n01", "n02"): 0.5}
    many = requirements_of_fleet(Fleet(tuple(nodes)))
    assert 60 <= len(many.pairs) < 30 * 29 / 2
    assert requirements_of_members({"a": "10.0.0.1", "b": None}).pairs == [("a", "b")]


def test_a_stage_on_a_gpu_needs_what_its_process_takes_there_and_memory_of_its_machine() -> None:
    job = tiny_job()
    captured = captured_job(job)
    plan = plan_with(job, captured, [[len(captured.units) // 2]])
    assert requirements_of_plan(plan).host_bytes == {}
    first, last = plan.fleet.nodes
    measured = replace(last, device="cuda:0", process_bytes=10**9)
    plan = replace(plan, fleet=replace(plan.fleet, nodes=(first, measured)))
    needs = requirements_of_plan(plan)
    stages = plan.predicted.clusters[0].stages
    assert needs.memory_bytes[first.name] == stages[0].memory_bytes
    assert needs.memory_bytes[last.name] == stages[1].memory_bytes - PROCESS_BYTES + 10**9
    spans, cluster = SpanCosts(plan.costs, plan.workload), plan.clusters[0]
    own = spans.host_bytes(*cluster.stages[1].units, cluster.window)
    assert own > 0
    assert needs.host_bytes == {last.name: CUDA_HOST_BYTES + own}
