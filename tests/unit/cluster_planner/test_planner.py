import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from cluster_planner import planner
from cluster_planner.advice.plan_warnings import better_single_node
from cluster_planner.advice.shorter_forms import RATIOS
from cluster_planner.errors import InvalidInput, NoFeasiblePlan
from cluster_planner.inputs.constraints import Constraints, Pin
from cluster_planner.inputs.fleet import Fleet, Node
from cluster_planner.inputs.links import Link, RegionLink
from cluster_planner.inputs.model_costs import ModelCosts, Unit, Workload
from cluster_planner.inputs.spans import SpanCosts
from cluster_planner.plan import Plan, validate
from cluster_planner.planner import UNEXPLAINED, make_plan, with_advice_planned
from cluster_planner.search.cluster_search import ESTIMATES_PER_NODE, FEW_NODES, ROUNDS
from cluster_planner.search.steps import Step


def planned(fleet: Fleet, costs: ModelCosts, work: Workload, **options: object) -> Plan:
    given = {"job": {"seed": 0}, "job_file": "job.yaml", "min_stages": 2, **options}
    return make_plan(fleet, costs, work, **given)  # type: ignore[arg-type]


def home_work(make_workload: Callable[..., Workload], **changes: object) -> Workload:
    return make_workload(**{"micro_batch": 8, "update_every": 8, "average_every": 4096, **changes})


def test_two_places_far_apart_become_two_clusters_with_different_cuts(
    home: Fleet, gpt: ModelCosts, make_workload: Callable[..., Workload]
) -> None:
    far = tuple(replace(link, latency_s=0.5) if link.a != link.b else link for link in home.regions)
    plan = planned(replace(home, regions=far), gpt, home_work(make_workload))
    assert [sorted(s.node for s in c.stages) for c in plan.clusters] == [
        ["fast0", "fast1", "fast2"],
        ["slow0", "slow1", "slow2"],
    ]
    cuts = [[stage.units for stage in cluster.stages] for cluster in plan.clusters]
    assert cuts[0] != cuts[1]
    assert len(plan.rings) > 3
    assert plan.spares == ()
    assert plan.predicted.bottleneck.startswith("c0: ")
    assert plan.predicted.advice


def test_progress_tells_of_every_number_of_clusters(
    home: Fleet, gpt: ModelCosts, make_workload: Callable[..., Workload]
) -> None:
    steps: list[Step] = []
    plan = planned(home, gpt, home_work(make_workload), progress=steps.append)
    assert [step.phase for step in steps][:4] == ["k-means"] * 4
    assert {step.phase for step in steps} == {"k-means", "local search", "all partitions"}
    assert sum(step.gained for step in steps) == pytest.approx(plan.predicted.objective)
    assert steps[-1].objective == plan.predicted.objective


def test_rounds_of_one_sample_are_planned_like_rounds_of_an_update_of_each_cluster(
    home: Fleet, gpt: ModelCosts, make_workload: Callable[..., Workload]
) -> None:
    fewest, few = (planned(home, gpt, home_work(make_workload, average_every=n)) for n in (1, 2 * 8 * 8))
    assert len(fewest.clusters) > 1
    assert fewest.clusters == few.clusters
    assert replace(fewest.predicted, advice="") == replace(few.predicted, advice=""), "advice names average_every"


def test_slow_uplinks_ask_for_shorter_pipelines(
    home: Fleet, gpt: ModelCosts, make_workload: Callable[..., Workload], make_node: Callable[..., Node]
) -> None:
    nodes = tuple(make_node(n.name, flops_per_s=n.flops_per_s, up_bytes_per_s=2e6, region=n.region) for n in home.nodes)
    plan = planned(Fleet(nodes, (), home.regions), gpt, home_work(make_workload))
    assert max(len(c.stages) for c in plan.clusters) == 2


def test_one_node_runs_one_stage(
    make_node: Callable[..., Node], make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]
) -> None:
    plan = planned(Fleet((make_node("a"),)), make_model(1), make_workload())
    assert [[s.units for s in c.stages] for c in plan.clusters] == [[(0, 1)]]
    assert [ring.members for ring in plan.rings] == [(("c0", 0),)]


@pytest.mark.parametrize("others", [1, 8])
def test_where_one_node_alone_does_better_that_plan_is_written(
    make_node: Callable[..., Node],
    make_model: Callable[..., ModelCosts],
    make_workload: Callable[..., Workload],
    others: int,
) -> None:
    small = [make_node(f"small{i}", flops_per_s=1e8, up_bytes_per_s=1e4) for i in range(others)]
    fleet, costs, work = Fleet((*small, make_node("big", flops_per_s=1e12))), make_model(8), make_workload()
    plan = make_plan(fleet, costs, work, job={}, job_file="job.yaml")
    assert [[stage.node for stage in cluster.stages] for cluster in plan.clusters] == [["big"]]
    assert {spare.node for spare in plan.spares} == {node.name for node in small}
    assert better_single_node(fleet, SpanCosts(costs, work), plan.clusters, plan.predicted.objective) is None


def test_a_node_that_holds_the_model_may_be_a_cluster_beside_pipelines(
    make_node: Callable[..., Node], make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]
) -> None:
    costs, work = make_model(8), make_workload(average_every=10**6)
    whole = SpanCosts(costs, work).stage_memory_bytes(0, 8, (0, 1), 1)
    small = tuple(make_node(name, memory_bytes=whole - 1, region="near") for name in "ab")
    far = (RegionLink("near", "far", 0.5, 1e5), RegionLink("near", "near", 0.001, 1e8))
    fleet = Fleet((make_node("roomy", region="far"), *small), (), far)
    plan = make_plan(fleet, costs, work, job={}, job_file="job.yaml")
    assert sorted(sorted(stage.node for stage in cluster.stages) for cluster in plan.clusters) == [
        ["a", "b"],
        ["roomy"],
    ]
    assert all(len(ring.members) == 2 for ring in plan.rings)


def test_min_stages_is_kept(
    make_node: Callable[..., Node], make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]
) -> None:
    fleet = Fleet(tuple(make_node(n) for n in "abcd"))
    for least in (1, 2, 3, 4):
        plan = planned(fleet, make_model(8), make_workload(), min_stages=least)
        assert min(len(c.stages) for c in plan.clusters) >= least
    with pytest.raises(NoFeasiblePlan, match="needs 5 nodes at the least, and 4 nodes of 4"):
        planned(fleet, make_model(8), make_workload(), min_stages=5)
    with pytest.raises(InvalidInput, match="min_stages: must be 1 or more"):
        planned(fleet, make_model(8), make_workload(), min_stages=0)


def test_spares_have_a_reason(
    make_node: Callable[..., Node], make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]
) -> None:
    slow = make_node("phone", flops_per_s=1e6)
    tiny = make_node("watch", memory_bytes=1000)
    plan = planned(Fleet((make_node("a"), slow, make_node("b"), tiny)), make_model(), make_workload())
    reasons = {spare.node: spare.reason for spare in plan.spares}
    assert set(reasons) == {"phone", "watch"}
    assert "would slow c0" in reasons["phone"]
    assert "hold no unit" in reasons["watch"]


def test_what_cannot_be_planned_says_why(
    make_node: Callable[..., Node], make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]
) -> None:
    two = Fleet((make_node("a"), make_node("b")))
    cases = [
        (two, make_model(1), "has 1 unit and cannot be cut into 2 stages"),
        (two, make_model(8, parameter_bytes=10**9), "no node has memory for any unit: .* 1 GB"),
        (
            two,
            make_model(80, parameter_bytes=5 * 10**6),
            "cannot hold the model: .*weights 0.4 GB.* GB of it for their processes",
        ),
        (Fleet((make_node("a"), make_node("b", memory_bytes=9))), make_model(), "needs 2 nodes .* 1 node of 2"),
    ]
    for fleet, costs, message in cases:
        with pytest.raises(NoFeasiblePlan, match=message):
            planned(fleet, costs, make_workload())
    units = make_model(4).units
    big = ModelCosts((*units, Unit(**{**vars(units[0]), "name": "head", "parameter_bytes": 10**9})), "x")
    with pytest.raises(NoFeasiblePlan, match="no node has memory for the largest unit"):
        planned(two, big, make_workload())


def test_a_pinned_node_that_may_join_nobody_is_named(
    make_node: Callable[..., Node], make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]
) -> None:
    nodes = tuple(make_node(name) for name in "abc")

    def said(*pins: Pin, **rules: object) -> str:
        demanded = Constraints(pins=pins, **rules)  # type: ignore[arg-type]
        with pytest.raises(NoFeasiblePlan) as raised:
            planned(Fleet(nodes, constraints=demanded), make_model(), make_workload())
        return str(raised.value)

    alone = said(Pin("b", stage=0), Pin("a", stage=0), forbid=(("a", "b"), ("a", "c")))
    assert alone.startswith("constraints.pin[1].node: a would be alone: ")
    assert "a cluster needs 2 nodes" in alone
    assert "would be alone" in said(Pin("a", cluster="x"), Pin("b", cluster="y"), Pin("c", cluster="y"))
    partners = Constraints(pins=(Pin("a", stage=0),), forbid=(("a", "b"),))
    assert planned(Fleet(nodes, constraints=partners), make_model(), make_workload()).clusters


def test_equal_nodes_without_links_can_be_planned(
    make_node: Callable[..., Node], make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]
) -> None:
    plan = planned(Fleet(tuple(make_node(f"n{i}") for i in range(6))), make_model(), make_workload())
    assert sum(len(c.stages) for c in plan.clusters) + len(plan.spares) == 6


SCRIPT = """
import sys
sys.path.insert(0, {folder!r})
from conftest import small_gpt, two_regions, workload
from cluster_planner import make_plan, save_plan
save_plan(make_plan(two_regions(), small_gpt(), workload(), job={{"b": 1, "a": 2}}, job_file="j"), sys.argv[1])
"""


def test_neither_the_hash_seed_nor_the_processor_changes_a_byte(tmp_path) -> None:  # type: ignore[no-untyped-def]
    script = SCRIPT.format(folder=os.path.dirname(__file__))  # noqa: PTH120
    texts = []
    for seed, kernel in (("0", ""), ("4242", "Haswell")):  # OpenBLAS adds in another order with another kernel
        out = tmp_path / f"plan{seed}.yaml"
        environment = {**os.environ, "PYTHONHASHSEED": seed, "OPENBLAS_CORETYPE": kernel}
        subprocess.run([sys.executable, "-c", script, str(out)], check=True, env=environment)
        texts.append(out.read_bytes())
    assert texts[0] == texts[1]


@st.composite
def worlds(draw: st.DrawFn) -> tuple[Fleet, ModelCosts, Workload]:
    rates = st.sampled_from([1e4, 1e6, 1.25e7])
    hosts = draw(st.booleans())
    nodes = tuple(
        Node(
            name=f"n{i}",
            flops_per_s=draw(st.sampled_from([1e8, 1e9, 3e10])),
            memory_bytes=draw(st.integers(1, 40)) * 10**6,
            up_bytes_per_s=1e6 if hosts else draw(rates),
            down_bytes_per_s=1e6 if hosts else draw(rates),
            host=draw(st.sampled_from([None, "h0", "h1"])) if hosts else None,
            region=draw(st.sampled_from([None, "x", "y"])),
        )
        for i in range(draw(st.integers(1, 6)))
    )
    pairs = [(a.name, b.name) for i, a in enumerate(nodes) for b in nodes[:i]]
    chosen = draw(st.lists(st.sampled_from(pairs), unique=True, max_size=4)) if pairs else []
    links = tuple(Link(a, b, draw(st.sampled_from([0.0, 0.01, 0.3])), draw(rates)) for a, b in chosen)
    both = {"x", "y"} <= {node.region for node in nodes}
    regions = (RegionLink("x", "y", 0.08, 1e7),) if both and draw(st.booleans()) else ()
    sizes = st.integers(0, 10**6)
    units = tuple(
        Unit(
            name=f"u{i}",
            flops=draw(st.floats(0, 1e8)),
            parameter_bytes=draw(sizes),
            saved_bytes=draw(sizes) // 10,
            boundary_bytes=draw(sizes) // 10,
            boundary_gradient_bytes=draw(sizes) // 10,
        )
        for i in range(draw(st.integers(1, 10)))
    )
    work = Workload(
        micro_batch=draw(st.integers(1, 4)),
        update_every=draw(st.integers(1, 6)),
        max_staleness=draw(st.integers(0, 2)),
        average_every=draw(st.integers(1, 5000)),
        max_lag=draw(st.integers(1, 3)),
        optimizer_state_bytes_per_parameter_byte=draw(st.sampled_from([0.0, 1.0, 2.0])),
        process_bytes=draw(st.integers(0, 10**6)),
    )
    return Fleet(nodes, links, regions), ModelCosts(units, "x"), work


@settings(max_examples=25, deadline=None)
@given(worlds(), st.integers(1, 3))
def test_every_accepted_world_gives_a_valid_plan(world: tuple[Fleet, ModelCosts, Workload], least: int) -> None:
    fleet, costs, work = world
    try:
        plan = planned(fleet, costs, work, min_stages=least)
    except NoFeasiblePlan:
        assume(False)
    validate(plan)
    for cluster, predicted in zip(plan.clusters, plan.predicted.clusters, strict=True):
        assert [unit for s in cluster.stages for unit in range(*s.units)] == list(range(len(costs.units)))
        assert len(cluster.stages) >= (1 if len(fleet.nodes) == 1 else least)
        assert 1 <= cluster.window <= work.largest_window
        for stage, timed in zip(cluster.stages, predicted.stages, strict=True):
            assert timed.memory_bytes <= fleet.node(stage.node).memory_bytes
    for ring in plan.rings:
        assert sorted(name for name, _ in ring.members) == sorted(c.name for c in plan.clusters)
    assert [unit for ring in plan.rings for unit in range(*ring.units)] == list(range(len(costs.units)))
    assert 0 < plan.predicted.efficiency <= 1
    assert plan.predicted.best_possible is not None
    assert plan.predicted.objective <= plan.predicted.best_possible * (1 + 1e-9)
    ends = [plan.share(cluster.name) for cluster in plan.clusters]
    assert ends[0][0] == 0.0
    assert ends[-1][1] == 1.0


@pytest.mark.timeout(900)  # some minutes on a slow and busy machine
def test_more_than_few_nodes_are_searched_with_bounded_work_and_none_is_lost(
    make_node: Callable[..., Node], gpt: ModelCosts, make_workload: Callable[..., Workload]
) -> None:
    nodes = tuple(
        make_node(f"n{i}", flops_per_s=(1 + i % 7) * 1e10, region="xyz"[i % 3], up_bytes_per_s=(1 + i % 5) * 5e6)
        for i in range(FEW_NODES + 1)
    )
    steps: list[Step] = []
    plan = planned(Fleet(nodes), gpt, home_work(make_workload), progress=steps.append)

    def counted(what: str) -> int:
        return sum(int(n.replace(",", "")) for step in steps for n in re.findall(rf"([\d,]+) {what}", step.words))

    assert counted("groups? estimated") <= 2 * ROUNDS * ESTIMATES_PER_NODE * len(nodes)
    assert 0 < counted("plans compared") <= 60_000
    one = planned(Fleet(nodes[:2]), gpt, home_work(make_workload))
    assert plan.predicted.objective > 4 * one.predicted.objective
    assert plan.predicted.objective == max(step.objective for step in steps)
    used = [stage.node for cluster in plan.clusters for stage in cluster.stages]
    assert sorted([*used, *(spare.node for spare in plan.spares)]) == sorted(node.name for node in nodes)


def test_advice_goes_by_how_long_training_is(
    make_node: Callable[..., Node], make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]
) -> None:
    apart = tuple((a, b) for a in "ab" for b in "cd")

    def fleet(rate: float) -> Fleet:
        names = zip("abcd", "hhii", strict=True)
        nodes = tuple(make_node(name, host=host, up_bytes_per_s=rate) for name, host in names)
        return Fleet(nodes, constraints=Constraints(min_clusters=2, forbid=apart))

    plan = planned(fleet(1e5), make_model(8), make_workload(average_every=256))
    assert plan.predicted.advice.startswith("int8 as the form in which rounds travel (averaging.wire) would raise ")
    shortest = RATIOS["int4"]
    work = make_workload(average_every=256, averaged_bytes_per_parameter_byte=shortest)
    given = fleet(1e5 * shortest), make_model(8), work
    assert planned(*given).predicted.advice.startswith("average_every 1024 instead of 256")
    short = planned(*given, trained_samples=8 * 600.0)
    assert short.predicted.advice.startswith("average_every 512 instead of 256")
    minutes = planned(*given, trained_s=8 * 600 / short.predicted.samples_per_s)
    assert minutes.predicted.advice == short.predicted.advice
    assert planned(*given, trained_samples=2000.0).predicted.advice.endswith("fewer than 8 rounds")


def test_advice_is_planned_anew_and_what_that_brings_stands_beside_it(
    home: Fleet, gpt: ModelCosts, make_workload: Callable[..., Workload]
) -> None:
    plan = planned(home, gpt, home_work(make_workload))
    again = with_advice_planned(plan)
    assert again.predicted.advice.startswith(plan.predicted.advice + "; planned anew with it, ")
    assert replace(again, predicted=plan.predicted) == plan
    more = tuple(replace(home.nodes[0], name=f"x{i}") for i in range(20))
    larger = replace(plan, fleet=replace(home, nodes=(*home.nodes, *more)))
    assert "; planned anew with it, " in with_advice_planned(larger).predicted.advice
    assert with_advice_planned(again) is again


def test_where_nodes_are_known_to_go_clusters_can_be_cut_at_more_places(
    home: Fleet, gpt: ModelCosts, make_workload: Callable[..., Workload]
) -> None:
    often = replace(home, nodes=tuple(replace(node, mtbf_s=4 * 3600.0) for node in home.nodes))
    usual, plan = (planned(fleet, gpt, home_work(make_workload)) for fleet in (home, often))
    validate(plan)
    cuts = {edge for cluster in plan.clusters for stage in cluster.stages for edge in stage.units}
    assert {edge for ring in usual.rings for edge in ring.units} <= {
        edge for cluster in usual.clusters for stage in cluster.stages for edge in stage.units
    }
    assert {edge for ring in plan.rings for edge in ring.units} > cuts
    assert plan.predicted.samples_per_s > 0.95 * usual.predicted.samples_per_s


@pytest.mark.parametrize("improvements", [0, 1, 2])
def test_a_search_that_is_interrupted_hands_over_the_best_plan_so_far(
    home: Fleet, gpt: ModelCosts, make_workload: Callable[..., Workload], improvements: int
) -> None:
    steps: list[Step] = []
    handed: list[Plan] = []

    def progress(step: Step) -> None:
        steps.append(step)
        if sum(one.gained > 0 for one in steps) >= improvements:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        planned(home, gpt, home_work(make_workload), progress=progress, interrupted=handed.append)
    if improvements == 0:
        assert handed == []
        return
    (plan,) = handed
    validate(plan)
    assert plan.predicted.objective == pytest.approx(sum(step.gained for step in steps))
    assert plan.predicted.advice == f"none: {UNEXPLAINED}"
    assert {spare.reason for spare in plan.spares} <= {UNEXPLAINED}


def test_an_interrupted_plan_works_out_nothing_that_takes_long(
    home: Fleet, gpt: ModelCosts, make_workload: Callable[..., Workload], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    for name in ("advise", "best_possible", "left_out", "with_warm_spares"):
        monkeypatch.setattr(planner, name, lambda *_, name=name: asked.append(name))

    def progress(step: Step) -> None:
        if step.gained > 0:
            raise KeyboardInterrupt

    handed: list[Plan] = []
    often = replace(home, nodes=tuple(replace(node, mtbf_s=4 * 3600.0) for node in home.nodes))
    with pytest.raises(KeyboardInterrupt):
        planned(often, gpt, home_work(make_workload), progress=progress, interrupted=handed.append)
    assert len(handed) == 1
    assert asked == []
