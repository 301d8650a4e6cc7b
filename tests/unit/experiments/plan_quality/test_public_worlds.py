from dataclasses import replace

import pytest

from cluster_planner import NoFeasiblePlan, SpanCosts, make_plan
from experiments.plan_quality import public_worlds
from experiments.plan_quality.public_worlds import AVERAGE_EVERY, by_hand, cases_of, climbed, measure, models, work_of
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
    for seconds in (0.0, 60.0):
        found, spent_s = climbed(small, SpanCosts(costs, work), plan.clusters, 2, seconds)
        assert found >= plan.predicted.objective or found == pytest.approx(plan.predicted.objective)
        assert spent_s < 60.0, "of six nodes, nothing is gained any more long before"


def test_cases_are_named_by_world_and_rounds() -> None:
    assert len(cases_of(())) == 8 * len(AVERAGE_EVERY)
    assert cases_of(("worldwide:488", "line")) == [("worldwide", 488), ("line", 488), ("line", 4096)]
    with pytest.raises(ValueError, match="there is no case mars"):
        cases_of(("mars",))


def test_a_world_is_no_case_of_a_model_that_it_cannot_hold() -> None:
    with pytest.raises(NoFeasiblePlan):
        make_plan(published_worlds()["line"], models()["7B"], work_of(488), job={}, job_file="job.yaml")
    with pytest.raises(ValueError, match="no world that is asked for can hold 7B"):
        measure("7B", quick=False, asked=("line",))


def test_cases_of_earlier_runs_stay_and_what_is_missing_is_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    def row(world: str, every: int, mine: float) -> list[object]:
        return [world, every, "2+2", 0, 1.0, mine, 1.0, 0.0, 1.2, 10.0, 5.0, 5.1, "abc"]

    monkeypatch.setattr(public_worlds, "_case", lambda world, every, *_: row(world, every, 1.2))
    earlier = [row("line", 488, 1.1), row("worldwide", 488, 1.0)]
    part = measure("1.3B", quick=False, asked=("worldwide:488",), earlier=lambda: earlier)
    assert [(one[0], one[1], one[5]) for one in part.tables[0].rows] == [("worldwide", 488, 1.2), ("line", 488, 1.1)]
    held = {claim.name: claim.held for claim in part.claims}
    assert held == {"worlds": False, "mean": None, "simulated": None}
