import pytest

from cluster_planner import predicted_again, with_swapped_nodes
from ravnest.page.plan_view import plan_document
from tests.unit.ravnest.simulator.test_fleet import home_plan

PLAN = predicted_again(home_plan())


def test_each_stage_has_its_place_and_its_load() -> None:
    document = plan_document(PLAN, PLAN)
    clusters = document["clusters"]
    assert isinstance(clusters, list)
    assert [cluster["name"] for cluster in clusters] == [cluster.name for cluster in PLAN.clusters]
    for shown, cluster in zip(clusters, PLAN.clusters, strict=True):
        assert [stage["node"] for stage in shown["stages"]] == [stage.node for stage in cluster.stages]
        assert [stage["recomputes"] for stage in shown["stages"]] == [stage.recomputes for stage in cluster.stages]
        computes = [stage["busy"] for stage in shown["stages"]]
        assert max(computes) == pytest.approx(1.0, abs=0.05), "the clusters are limited by computing"
        assert all(0 < stage["memory_bytes"] <= stage["has_bytes"] for stage in shown["stages"])
    assert document["spares"] == [{"node": spare.node, "reason": spare.reason} for spare in PLAN.spares]


def test_figures_stand_beside_those_of_the_plan_that_was_given() -> None:
    first, last = PLAN.clusters[0].stages[0].node, PLAN.clusters[0].stages[-1].node
    now = with_swapped_nodes(PLAN, [(first, last)])
    document = plan_document(PLAN, now)
    assert document["worth"] == {"given": PLAN.predicted.objective, "now": now.predicted.objective}
    assert document["bottleneck"] == now.predicted.bottleneck
