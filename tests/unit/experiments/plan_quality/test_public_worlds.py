from dataclasses import replace

import pytest

from cluster_planner import SpanCosts, make_plan
from experiments.plan_quality.public_worlds import by_hand, climbed, work_of
from experiments.plan_quality.published_worlds import NODES, published_worlds
from experiments.plan_quality.worlds import gpt


def test_the_worlds_have_as_many_gpus_and_every_pair_is_joined() -> None:
    worlds = published_worlds()
    assert len(worlds) == 8
    for name, fleet in worlds.items():
        assert len(fleet.nodes) == (8 if name == "line" else NODES)
        regions = sorted({str(node.region) for node in fleet.nodes})
        assert len(fleet.regions) == len(regions) * (len(regions) + 1) // 2
    far = worlds["worldwide"].link("tokyo-0", "frankfurt-7")
    assert (far.latency_s, far.bytes_per_s) == (0.223, 0.36 * 1.25e8)


def test_by_hand_each_region_is_a_stage_and_one_region_makes_none() -> None:
    fleet = published_worlds()["worldwide"]
    spans = SpanCosts(gpt(), work_of(488))
    assert by_hand(fleet, spans) > 0
    one_place = replace(fleet, nodes=tuple(node for node in fleet.nodes if node.region == "Ohio"), regions=())
    assert by_hand(one_place, spans) == 0.0


def test_climbing_from_a_plan_never_loses() -> None:
    fleet = published_worlds()["worldwide"]
    small = replace(fleet, nodes=tuple(node for node in fleet.nodes if node.region == "Ohio")[:6], regions=())
    costs, work = gpt(layers=4), work_of(488)
    plan = make_plan(small, costs, work, job={}, job_file="job.yaml")
    found = climbed(small, SpanCosts(costs, work), plan.clusters, 2, 20)
    assert found >= plan.predicted.objective or found == pytest.approx(plan.predicted.objective)
