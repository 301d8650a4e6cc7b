import pytest

from cluster_planner import validate
from experiments.scale.fleets import home_plan
from experiments.scale.rings import by_formula, one_round_s
from ravnest.simulator.fleet import fleet_of_plan


def test_a_generated_plan_is_a_valid_one_and_its_seed_decides_it() -> None:
    plan = home_plan(20, 5, 1)
    validate(plan)
    assert (len(plan.clusters), len(plan.rings)) == (4, 5)
    assert plan == home_plan(20, 5, 1)
    assert plan.fleet != home_plan(20, 5, 2).fleet


@pytest.mark.parametrize(("members", "n_bytes", "bound_by_latency"), [(9, 8_000_000, False), (65, 500_000, True)])
def test_a_round_of_a_flat_ring_takes_what_the_formula_says(members: int, n_bytes: int, bound_by_latency: bool) -> None:
    fleet = fleet_of_plan(home_plan(members, 1, 1, samples_per_cluster=10**9, segment_bytes=n_bytes))
    narrowest_s, way_s = by_formula(fleet)
    assert (way_s > narrowest_s) == bound_by_latency
    assert one_round_s(fleet) == pytest.approx(max(narrowest_s, way_s), rel=0.10)
