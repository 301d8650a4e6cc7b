from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from cluster_planner import Fleet, InvalidInput, ModelCosts, Node, NoFeasiblePlan, Workload, load_fleet, make_plan
from cluster_planner.constraints import Constraints, broken_by
from cluster_planner.files import load_plan, save_plan
from cluster_planner.plan import Plan, validate

FILE = """
nodes:
  - {name: desk, gflops: 10, memory_gb: 1, up_mbps: 40, down_mbps: 200, region: fra}
  - {name: attic, gflops: 10, memory_gb: 1, up_mbps: 40, down_mbps: 200, region: iad}
constraints:
"""


def planned(fleet: Fleet, costs: ModelCosts, work: Workload) -> Plan:
    return make_plan(fleet, costs, work, job={}, job_file="job.yaml")


def clusters_of(plan: Plan) -> list[list[str]]:
    return [sorted(stage.node for stage in cluster.stages) for cluster in plan.clusters]


@pytest.mark.parametrize("count", [4, 10])
def test_forbidden_pairs_share_no_cluster(
    make_node: Callable[..., Node], gpt: ModelCosts, make_workload: Callable[..., Workload], count: int
) -> None:
    names = [f"n{i}" for i in range(count)]
    pairs = (("n0", "n1"), ("n1", "n2"))
    fleet = Fleet(tuple(make_node(n) for n in names), constraints=Constraints(forbid=pairs))
    plan = planned(fleet, gpt, make_workload())
    for cluster in clusters_of(plan):
        assert not {"n0", "n1"} <= set(cluster)
        assert not {"n1", "n2"} <= set(cluster)


def test_groups_and_regions_stay_apart(home: Fleet, gpt: ModelCosts, make_workload: Callable[..., Workload]) -> None:
    apart = Constraints(groups=(("old", ("slow0", "slow1")),), apart=(("old", "fra"),))
    plan = planned(replace(home, constraints=apart), gpt, make_workload())
    for cluster in clusters_of(plan):
        assert not ({"slow0", "slow1"} & set(cluster) and {"fast0", "fast1", "fast2"} & set(cluster))


def test_there_are_as_many_clusters_as_demanded(
    make_node: Callable[..., Node], gpt: ModelCosts, make_workload: Callable[..., Workload]
) -> None:
    nodes = tuple(make_node(f"n{i}", up_bytes_per_s=1e5) for i in range(6))
    for least in (2, 3):
        demanded = Fleet(nodes, constraints=Constraints(min_clusters=least))
        assert len(planned(demanded, gpt, make_workload()).clusters) >= least
    with pytest.raises(NoFeasiblePlan, match="constraints: no plan was found that meets"):
        planned(Fleet(nodes, constraints=Constraints(min_clusters=4)), gpt, make_workload())


def test_an_edited_plan_is_held_to_them(
    make_node: Callable[..., Node], gpt: ModelCosts, make_workload: Callable[..., Workload], tmp_path: Path
) -> None:
    fleet = Fleet(tuple(make_node(n) for n in "ab"))
    plan = planned(fleet, gpt, make_workload())
    for constraints, message in (
        (Constraints(forbid=(("a", "b"),)), r"clusters\[0\].stages: has 'a' and 'b'"),
        (Constraints(min_clusters=2), "there are 1, and constraints.min_clusters demands 2"),
    ):
        with pytest.raises(InvalidInput, match=message):
            validate(replace(plan, fleet=replace(fleet, constraints=constraints)))
    kept = Constraints(groups=(("g", ("a",)),))
    save_plan(replace(plan, fleet=replace(fleet, constraints=kept)), tmp_path / "plan.yaml")
    assert load_plan(tmp_path / "plan.yaml").fleet.constraints == kept


def test_caps_lower_what_a_node_gives(tmp_path: Path) -> None:
    path = tmp_path / "nodes.yaml"
    path.write_text(FILE + "  cap: [{node: desk, memory_gb: 0.5, up_mbps: 8}, {node: attic, memory_gb: 9}]\n")
    desk, attic = load_fleet(path).nodes
    assert (desk.memory_bytes, desk.up_bytes_per_s) == (5 * 10**8, 1e6)
    assert (attic.memory_bytes, attic.up_bytes_per_s) == (10**9, 5e6)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("  forbid: [[desk, atic]]", r"constraints.forbid\[0\]: no node is named 'atic'; did you mean 'attic'\?"),
        ("  forbid: [[desk, desk]]", r"constraints.forbid\[0\]: names 'desk' twice"),
        ("  apart: [[fra, ia]]", r"constraints.apart\[0\]: no group or region is named 'ia'; did you mean 'iad'\?"),
        ("  groups: {fra: [desk]}", "constraints.groups.fra: is the name of a region, too"),
        ("  groups: {g: [dsk]}", "constraints.groups.g: no node is named 'dsk'; did you mean 'desk'"),
        ("  groups: {g: []}", "constraints.groups.g: needs at least one entry"),
        ("  groups: {g: [desk]}\n  apart: [[g, fra]]", r"constraints.apart\[0\]: 'desk' is in both"),
        ("  min_clusters: 3", "constraints.min_clusters: must be from 1 to the number of nodes, 2, not 3"),
        ("  min_clusters: 0", "constraints.min_clusters: must be 1 or more"),
        ("  cap: [{node: desc, memory_gb: 1}]", r"constraints.cap\[0\].node: no node is named 'desc'"),
        ("  cap: [{node: desk, memory_gb: -1}]", r"constraints.cap\[0\].memory_gb: must be above 0"),
        ("  pins: []", "constraints.pins: is not a known key"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, lines: str, message: str) -> None:
    path = tmp_path / "nodes.yaml"
    path.write_text(FILE + lines + "\n")
    with pytest.raises(InvalidInput, match=message):
        load_fleet(path)


def test_two_that_break_a_rule_are_named() -> None:
    sides = Constraints(forbid=(("a", "c"),)).sides({"a": None, "b": None, "c": None})
    assert broken_by(sides, "ab") is None
    assert broken_by(sides, "abc") == ("a", "c")
