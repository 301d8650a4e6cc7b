"""A cluster made anew, beside others that go on, against every assignment of whole segments to nodes."""

import itertools
import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from cluster_planner import (
    Cluster,
    Constraints,
    Fleet,
    ModelCosts,
    Node,
    Pin,
    Plan,
    SpanCosts,
    Stage,
    Workload,
    validate,
)
from cluster_planner.pipeline.cluster_anew import cluster_at, handover_s, samples_per_s, with_cluster
from cluster_planner.pipeline.memory_fit import recomputing
from cluster_planner.plan import Prediction
from cluster_planner.predict.prediction import predict
from cluster_planner.rings import make_rings

COUNT = 12
CUTS = {"c0": (3, 8), "c1": (5,), "c2": (8, 10)}


@pytest.fixture
def make_plan(
    make_node: Callable[..., Node], make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]
) -> Callable[..., Plan]:
    """Three clusters, cut at 3, 5, 8 and 10 in all, with spare nodes and changes to single nodes."""

    def make(*spares: Node, **changes: dict[str, object]) -> Plan:
        spans = SpanCosts(make_model(COUNT), make_workload())
        clusters, nodes = [], []
        for name, cuts in CUTS.items():
            units = list(itertools.pairwise((0, *cuts, COUNT)))
            names = [f"{name}-{i}" for i in range(len(units))]
            nodes += [make_node(each, **changes.get(each, {})) for each in names]
            stages = tuple(Stage(node, span) for node, span in zip(names, units, strict=True))
            clusters.append(Cluster(name, 4, stages))
        fleet = Fleet((*nodes, *spares))
        rings = make_rings(fleet, spans, clusters)
        predicted: Prediction = predict(fleet, spans, clusters, rings).prediction
        plan = Plan(
            clusters=tuple(clusters),
            rings=rings,
            spares=(),
            predicted=predicted,
            fleet=fleet,
            costs=make_model(COUNT),
            workload=make_workload(),
            job={},
            job_file="job.yaml",
            seed=0,
        )
        return with_cluster(plan, plan.clusters[0], "not needed")

    return make


def everything(plan: Plan, names: tuple[str, ...]) -> list[Cluster]:
    """Every cluster of some of these nodes, in every order, cut where segments meet, with every window that fits."""
    edges = [ring.units[0] for ring in plan.rings[1:]]
    spans = SpanCosts(plan.costs, plan.workload)
    found = []
    for count in range(1, min(len(names), len(edges) + 1) + 1):
        for order in itertools.permutations(names, count):
            for cuts in itertools.combinations(edges, count - 1):
                units = itertools.pairwise((0, *cuts, COUNT))
                plain = [Stage(node, span) for node, span in zip(order, units, strict=True)]
                for window in (8, 4, 2, 1):
                    stages = recomputing(plan.fleet, spans, plain, window)
                    if stages is not None:
                        found.append(Cluster("c0", window, stages))
    return found


@pytest.mark.parametrize("seed", range(8))
def test_it_is_as_good_as_the_best_of_all_assignments(
    seed: int, make_node: Callable[..., Node], make_plan: Callable[..., Plan]
) -> None:
    chance = random.Random(seed)
    names = tuple(f"n{i}" for i in range(3))
    plan = make_plan(
        *(
            make_node(
                name,
                flops_per_s=chance.uniform(5e9, 5e10),
                up_bytes_per_s=chance.uniform(2e5, 2e7),
                memory_bytes=int(chance.uniform(1.2e8, 2.5e8)),
            )
            for name in names
        )
    )
    spans = SpanCosts(plan.costs, plan.workload)

    def worth(cluster: Cluster) -> float:
        return predict(plan.fleet, spans, [cluster], []).prediction.objective

    all_of_them = everything(plan, names)
    found = cluster_at(plan, "c0", names, ())
    if not all_of_them:
        assert found is None
        return
    assert found is not None
    assert worth(found) >= 0.94 * max(worth(each) for each in all_of_them)


def test_stages_hold_whole_segments_and_the_rings_name_who_holds_them(make_plan: Callable[..., Plan]) -> None:
    plan = make_plan()
    found = cluster_at(plan, "c0", ["c0-0", "c0-2"], ())
    assert found is not None
    new = with_cluster(plan, found, "its cluster does without it")
    assert [ring.units for ring in new.rings] == [ring.units for ring in plan.rings]
    assert [spare.node for spare in new.spares] == ["c0-1"]
    for ring in new.rings:
        for name, index in ring.members:
            start, end = new.cluster(name).stages[index].units
            assert start <= ring.units[0] < ring.units[1] <= end
    validate(new)  # what a run writes down has to be read again by the driver that takes it over
    assert new.share("c0") == plan.share("c0")
    alone, beside = samples_per_s(new, ["c0"]), samples_per_s(new, ["c0", "c1"])
    assert 0 < beside["c0"] <= alone["c0"]


def test_one_node_may_hold_all_of_it_and_too_little_memory_holds_nothing(make_plan: Callable[..., Plan]) -> None:
    small: dict[str, object] = {"memory_bytes": 1.1e8}
    plan = make_plan(**{"c0-0": small})
    alone = cluster_at(plan, "c0", ["c0-1"], ())
    assert alone is not None
    assert [stage.units for stage in alone.stages] == [(0, COUNT)]
    assert cluster_at(plan, "c0", ["c0-0"], ()) is None
    assert cluster_at(plan, "c0", [], []) is None


def test_a_node_that_must_stay_apart_is_not_taken_and_pins_of_the_gone_are_forgotten(
    make_node: Callable[..., Node], make_plan: Callable[..., Plan]
) -> None:
    fast, near = make_node("fast", flops_per_s=9e11), make_node("near", flops_per_s=5e10)
    plan = make_plan(fast, near)
    demanded = Constraints(forbid=(("fast", "c0-0"),), pins=(Pin("c0-1", "c0"), Pin("c0-0", "c0")))
    plan = replace(plan, fleet=replace(plan.fleet, constraints=demanded))
    found = cluster_at(plan, "c0", ["c0-0", "c0-2"], ["fast", "near"])
    assert found is not None
    used = {stage.node for stage in found.stages}
    assert {"c0-0", "near"} <= used
    assert "fast" not in used


def test_handing_over_is_bounded_by_the_busiest_sender_and_the_busiest_receiver(make_plan: Callable[..., Plan]) -> None:
    plan = make_plan(**{"c1-0": {"up_bytes_per_s": 1e7}, "c1-1": {"up_bytes_per_s": 1e7}})
    held = 3 * 10**6  # weights and two states of the optimizer, of each unit
    assert handover_s(plan, "c0", ["c1", "c2"]) == pytest.approx(max(7 * held / 1e7, 5 * held / 2e7))
    one = with_cluster(plan, Cluster("c0", 4, (Stage("c0-1", (0, COUNT)),)), "")
    assert handover_s(one, "c0", ["c1"]) == pytest.approx(max(7 * held / 1e7, 12 * held / 2e7))
    assert handover_s(plan, "c0", []) == 0.0
