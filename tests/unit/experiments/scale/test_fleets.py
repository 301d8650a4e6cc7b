import pytest

from cluster_planner.plan import validate
from experiments.scale.fleets import home_plan
from experiments.scale.rings import by_formula, one_round_s
from ravnest.pipeline.virtual_plan import MOST_JUDGED


def test_a_generated_plan_is_a_valid_one_and_its_seed_decides_it() -> None:
    plan = home_plan(20, 5, 1)
    validate(plan)
    assert (len(plan.clusters), len(plan.rings)) == (4, 5)
    assert plan == home_plan(20, 5, 1)
    assert plan.fleet != home_plan(20, 5, 2).fleet


def test_a_round_of_a_flat_ring_takes_what_the_formula_says() -> None:
    plan = home_plan(MOST_JUDGED + 1, 1, 1, samples_per_cluster=10**9)  # fewer would be given unequal blocks
    assert one_round_s(plan) == pytest.approx(by_formula(plan), rel=0.25)
