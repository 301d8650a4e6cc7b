from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from cluster_planner import Fleet, InvalidInput, ModelCosts, Node, NoFeasiblePlan, Workload, load_fleet, make_plan
from cluster_planner.files.yaml_files import load_plan, save_plan
from cluster_planner.inputs.constraints import Constraints, Pin, broken_by, common_hours, hours_from
from cluster_planner.plan import Plan, validate

FILE = """
nodes:
  - {name: desk, gflops: 10, memory_gb: 1, up_mbps: 40, down_mbps: 200, region: fra}
  - {name: attic, gflops: 10, memory_gb: 1, up_mbps: 40, down_mbps: 200, region: iad}
constraints:
"""


def planned(fleet: Fleet, costs: ModelCosts, work: Workload) -> Plan:
    return make_plan(fleet, costs, work, job={}, job_file="job.yaml", min_stages=2)


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
    with pytest.raises(NoFeasiblePlan, match=r"constraints\.min_clusters: must be 3 at most, not 4: 6 nodes can hold"):
        planned(Fleet(nodes, constraints=Constraints(min_clusters=4)), gpt, make_workload())
    apart = Constraints(min_clusters=3, forbid=(("n0", "n1"),), pins=(Pin("n0", "x"), Pin("n2", "x"), Pin("n3", "x")))
    with pytest.raises(NoFeasiblePlan, match=r"constraints: no plan was found .* \(min_clusters, forbid, pin\)"):
        planned(Fleet(nodes, constraints=apart), gpt, make_workload())


def test_an_edited_plan_is_held_to_them(
    make_node: Callable[..., Node], gpt: ModelCosts, make_workload: Callable[..., Workload], tmp_path: Path
) -> None:
    fleet = Fleet(tuple(make_node(n) for n in "ab"))
    plan = planned(fleet, gpt, make_workload())
    for constraints, message in (
        (Constraints(forbid=(("a", "b"),)), r"clusters\[0\].stages: has 'a' and 'b'"),
        (Constraints(min_clusters=2), "there are 1, and constraints.min_clusters demands 2"),
        (
            Constraints(pins=(Pin("a", "x"),)),
            r"clusters: 'a' runs stage \d of 'c0', which is not where constraints.pin",
        ),
        (Constraints(pins=(Pin(plan.clusters[0].stages[0].node, None, "last"),)), "which is not where"),
        (Constraints(pins=(Pin("a", "x"), Pin("b", "y"))), "has nodes that are pinned to 'x' and nodes"),
    ):
        with pytest.raises(InvalidInput, match=message):
            validate(replace(plan, fleet=replace(fleet, constraints=constraints)))
    pins = tuple(Pin(stage.node, "c0", i) for i, stage in enumerate(plan.clusters[0].stages))
    kept = Constraints(groups=(("g", ("a",)),), pins=pins)
    evening = tuple(replace(node, hours=hours_from("18-24, 2-3")) for node in fleet.nodes)
    save_plan(replace(plan, fleet=replace(fleet, nodes=evening, constraints=kept)), tmp_path / "plan.yaml")
    again = load_plan(tmp_path / "plan.yaml").fleet
    assert again.constraints == kept
    assert again.nodes == evening


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
        ("  pin: [{node: desc, stage: 0}]", r"constraints.pin\[0\].node: no node is named 'desc'"),
        ("  pin: [{node: desk}]", r"constraints.pin\[0\]: needs a cluster, a stage, or both"),
        ("  pin: [{node: desk, stage: -1}]", r"constraints.pin\[0\].stage: must be 0 or more"),
        ("  pin: [{node: desk, stage: 2}]", r"constraints.pin\[0\].stage: must be 'last', or from 0 to 1: there are 2"),
        ("  pin: [{node: desk, stage: first}]", r"constraints.pin\[0\].stage: must be .* or 'last'"),
        ("  pin: [{node: desk, cluster: a b}]", r"constraints.pin\[0\].cluster: must be a name of at most 32 letters"),
        (
            "  pin: [{node: desk, cluster: x}, {node: desk, cluster: y}]",
            r"constraints.pin\[1\].node: 'desk' is already pinned by constraints.pin\[0\]",
        ),
        (
            "  pin: [{node: desk, cluster: x, stage: 0}, {node: attic, cluster: x, stage: 0}]",
            r"constraints.pin\[1\].stage: 'desk' is already pinned to stage 0 of 'x' by constraints.pin\[0\]",
        ),
        (
            "  forbid: [[desk, attic]]\n  pin: [{node: desk, cluster: x}, {node: attic, cluster: x}]",
            r"constraints.pin\[1\].cluster: 'desk' and 'attic' are both pinned to 'x', and constraints.forbid\[0\]",
        ),
        (
            "  apart: [[fra, iad]]\n  pin: [{node: attic, cluster: x}, {node: desk, cluster: x}]",
            r"constraints.pin\[1\].cluster: 'desk' and 'attic' are both .* constraints.apart\[0\] keeps them apart",
        ),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, lines: str, message: str) -> None:
    path = tmp_path / "nodes.yaml"
    path.write_text(FILE + lines + "\n")
    with pytest.raises(InvalidInput, match=message):
        load_fleet(path)


def test_pinned_nodes_run_where_they_are_pinned(
    home: Fleet, gpt: ModelCosts, make_workload: Callable[..., Workload]
) -> None:
    pins = (Pin("slow0", "east", "last"), Pin("fast2", "east"), Pin("slow1", "west", 1), Pin("fast0", None, 0))
    plan = planned(replace(home, constraints=Constraints(pins=pins)), gpt, make_workload())
    east, west = plan.cluster("east"), plan.cluster("west")
    assert east.stages[-1].node == "slow0"
    assert "fast2" in [stage.node for stage in east.stages]
    assert west.stages[1].node == "slow1"
    assert "fast0" in [cluster.stages[0].node for cluster in plan.clusters]
    assert [cluster.name for cluster in plan.clusters if cluster.name not in ("east", "west")] in ([], ["c0"])


def test_a_pin_to_a_stage_that_it_cannot_hold_is_told(
    make_node: Callable[..., Node], make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]
) -> None:
    head = replace(make_model(1).units[0], parameter_bytes=5 * 10**7)
    costs = ModelCosts((*make_model(4).units, head), "x")
    small = make_node("small", memory_bytes=2 * 10**8)
    nodes = (make_node("a"), make_node("b"), small, make_node("tiny", memory_bytes=1000))
    for pin, message in (
        (Pin("small", None, "last"), r"constraints.pin\[0\].stage: stage last needs .* small has 0.2 GB"),
        (Pin("tiny", "x"), r"constraints.pin\[0\].node: no unit fits: tiny has 1e-06 GB"),
    ):
        with pytest.raises(NoFeasiblePlan, match=message):
            planned(Fleet(nodes, constraints=Constraints(pins=(pin,))), costs, make_workload())
    many = tuple(make_node(f"n{i}") for i in range(7))
    with pytest.raises(NoFeasiblePlan, match=r"pin\[0\].stage: must be 'last' or below 5, the number of the model's"):
        planned(Fleet(many, constraints=Constraints(pins=(Pin("n0", None, 5),))), costs, make_workload())


def test_clusters_are_of_nodes_that_are_there_together(
    make_node: Callable[..., Node], gpt: ModelCosts, make_workload: Callable[..., Workload]
) -> None:
    hours = {"a": "18-24", "b": "18-24", "c": "6-12", "d": "6-12"}
    nodes = tuple(make_node(name, hours=hours_from(text)) for name, text in hours.items())
    plan = planned(Fleet(nodes), gpt, make_workload())
    assert sorted(clusters_of(plan)) == [["a", "b"], ["c", "d"]]
    always = planned(Fleet(tuple(make_node(n) for n in "abcd")), gpt, make_workload())
    assert plan.predicted.objective < 0.5 * always.predicted.objective
    assert plan.predicted.objective == pytest.approx(plan.predicted.samples_per_s * plan.predicted.efficiency)
    never = tuple(make_node(name, hours=1 << i) for i, name in enumerate("abcd"))
    with pytest.raises(NoFeasiblePlan, match=r"^nodes: no cluster that holds the model has an hour of the day"):
        planned(Fleet(never), gpt, make_workload())
    mates = Constraints(pins=(Pin("a", "x"), Pin("b", "x")))
    with pytest.raises(
        InvalidInput, match=r"constraints.pin\[1\].cluster: the nodes pinned to 'x' are never all there"
    ):
        Fleet(never, constraints=mates)


@pytest.mark.parametrize("count", [10, 140])
def test_larger_fleets_keep_to_their_constraints(
    make_node: Callable[..., Node],
    make_model: Callable[..., ModelCosts],
    make_workload: Callable[..., Workload],
    count: int,
) -> None:
    nodes = tuple(
        make_node(
            f"n{i}", flops_per_s=(1 + i % 5) * 1e10, region="xyz"[i % 3], hours=hours_from(("0-24", "8-20")[i % 2])
        )
        for i in range(count)
    )
    pins = (Pin("n0", "one", 0), Pin(f"n{(count - 1) // 3 * 3}", "one", "last"), Pin("n4", "two"), Pin("n5", None, 1))
    constraints = Constraints(pins=pins, apart=(("x", "y"),), forbid=(("n4", "n5"), ("n0", "n3")), min_clusters=2)
    validate(planned(Fleet(nodes, constraints=constraints), make_model(6), make_workload()))


@st.composite
def demanding(draw: st.DrawFn) -> Fleet:
    """Fleets of unequal nodes with constraints of every kind."""
    names = [f"n{i}" for i in range(draw(st.sampled_from([2, 3, 4, 5, 6, 9])))]
    texts = st.sampled_from(["0-24", "0-24", "8-20", "18-2", "0-6"])
    nodes = tuple(
        Node(
            name=name,
            flops_per_s=draw(st.sampled_from([1e9, 5e9, 3e10])),
            memory_bytes=draw(st.integers(10, 400)) * 10**5,
            up_bytes_per_s=2e6,
            down_bytes_per_s=1e7,
            region=draw(st.sampled_from(["x", "y"])),
            host=draw(st.sampled_from([None, None, "h"])),
            hours=hours_from(draw(texts)),
        )
        for name in names
    )
    several = st.lists(st.sampled_from(names), unique=True, max_size=3)
    stages: st.SearchStrategy[int | Literal["last"] | None] = st.sampled_from([None, None, 0, 2, "last"])
    pins = [Pin(name, draw(st.sampled_from([None, "p", "q"])), draw(stages)) for name in draw(several)]
    pairs = st.lists(
        st.tuples(st.sampled_from(names), st.sampled_from(names)).filter(lambda p: p[0] != p[1]), max_size=2
    )
    regions = {node.region for node in nodes}
    given = Constraints(
        min_clusters=draw(st.integers(1, max(1, len(names) // 3))),
        forbid=tuple(draw(pairs)),
        apart=(("x", "y"),) if len(regions) == 2 and draw(st.booleans()) else (),
        pins=tuple(pin for pin in pins if pin.cluster is not None or pin.stage is not None),
    )
    try:
        return Fleet(nodes, constraints=given)
    except InvalidInput as refused:
        assert (refused.key or "").startswith("constraints.")  # noqa: PT017
        event(refused.message[:40])
        return Fleet(nodes)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_every_constraint_holds_in_every_plan(
    make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload], data: st.DataObject
) -> None:
    fleet = data.draw(demanding())
    try:
        plan = planned(fleet, make_model(6), make_workload(process_bytes=10**6))
    except NoFeasiblePlan as refused:
        event(refused.message[:40])
        return
    demanded, where = fleet.constraints, dict[str, tuple[str, int, int]]()
    assert len(plan.clusters) >= demanded.min_clusters
    for cluster in plan.clusters:
        names = [stage.node for stage in cluster.stages]
        where |= {name: (cluster.name, s, len(names)) for s, name in enumerate(names)}
        assert all(not {a, b} <= set(names) for a, b in demanded.forbid)
        assert not demanded.apart or len({fleet.node(name).region for name in names}) == 1
        assert common_hours(fleet.node(name).hours for name in names)
    for pin in demanded.pins:
        name, stage, stages = where[pin.node]
        assert pin.cluster in (None, name)
        assert pin.stage in (None, stage) or (pin.stage, stage) == ("last", stages - 1)
    assert plan.predicted.best_possible is not None
    assert plan.predicted.objective <= plan.predicted.best_possible * (1 + 1e-9)


def test_a_pin_holds_in_what_parts_of_a_fleet_begin_with(
    make_node: Callable[..., Node], make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]
) -> None:
    """The fastest node is pinned to the first stage; a tour through a part of the fleet has it later."""
    memory = [28.7, 19.2, 1.0, 8.7, 26.8, 24.8, 20.7, 40.0, 34.5]
    speeds = [1e9, 1e9, 1e9, 1e9, 1e9, 5e9, 1e9, 30e9, 1e9]
    nodes = tuple(
        make_node(f"n{i}", flops_per_s=speed, memory_bytes=round(size * 1e6), up_bytes_per_s=2e6, down_bytes_per_s=1e7)
        for i, (speed, size) in enumerate(zip(speeds, memory, strict=True))
    )
    fleet = Fleet(nodes, constraints=Constraints(pins=(Pin("n7", stage=0),)))
    plan = planned(fleet, make_model(6), make_workload(process_bytes=10**6))
    assert "n7" in {cluster.stages[0].node for cluster in plan.clusters}


def test_two_that_break_a_rule_are_named() -> None:
    sides = Constraints(forbid=(("a", "c"),)).sides({"a": None, "b": None, "c": None})
    assert broken_by(sides, "ab") is None
    assert broken_by(sides, "abc") == ("a", "c")
