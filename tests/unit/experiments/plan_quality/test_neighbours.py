from dataclasses import replace

import pytest

from cluster_planner import Plan, averaging_factor
from experiments.fidelity.achieved import Achieved
from experiments.plan_quality.home_plans import plan_of, with_clusters
from experiments.plan_quality.homes import DIVISIBLE, homes
from experiments.plan_quality.neighbours import NOISE, Choice, part
from experiments.plan_quality.rehearsing import Made


def made(*rates: float, stale: float = 0.0) -> Made:
    return Made(Achieved(sum(rates), None, {}), tuple((rate, stale) for rate in rates))


@pytest.fixture(scope="module")
def plans(paced: None) -> tuple[Plan, Plan]:
    """Two clusters, and one."""
    two = plan_of(homes(3, DIVISIBLE)[0])
    one = with_clusters(two, 1, 2)
    assert one is not None
    return two, one


@pytest.fixture
def two(plans: tuple[Plan, Plan]) -> Choice:
    return Choice("k01", "6 nodes", True, plans[0], made(100.0, 100.0), made(100.0, 100.0))


@pytest.fixture
def one(plans: tuple[Plan, Plan]) -> Choice:
    return Choice("k01", "6 nodes", False, plans[1], made(120.0), made(120.0))


def claims(*choices: Choice) -> dict[str, tuple[bool | None, str]]:
    return {claim.name: (claim.held, claim.measured) for claim in part(choices, 20.0).claims}


def test_worth_is_the_objective_with_what_was_measured(two: Choice, one: Choice) -> None:
    assert one.worth(one.rehearsed) == pytest.approx(120.0)
    assert one.worth(made(120.0, stale=1.0)) == pytest.approx(100.0)
    assert two.worth(two.rehearsed) == pytest.approx(200.0 * averaging_factor(2, two.plan.workload))
    assert two.worth("RuntimeError: late") is None


def test_the_planners_k_is_confirmed_where_its_neighbours_are_worth_less(two: Choice, one: Choice) -> None:
    found = claims(two, one)
    assert found["rehearsed"][0] is True
    assert found["simulated"][0] is True
    assert found["rehearsed"][1].startswith("1 of 1; 1.")


def test_a_better_neighbour_is_told(two: Choice, one: Choice) -> None:
    better = replace(one, rehearsed=made(250.0))
    found = claims(two, better)
    assert found["rehearsed"][0] is False
    assert found["simulated"][0] is True
    told = " ".join(part([two, better], 20.0).notes)
    assert "k01: 1 clusters were worth" in told
    assert "(not within noise)" in told


def test_a_neighbour_as_good_but_for_noise_does_not_refute_it(two: Choice, one: Choice) -> None:
    own = two.worth(two.rehearsed)
    assert own is not None
    near = replace(one, rehearsed=made(own / (1 - NOISE / 2)))
    assert claims(two, near)["rehearsed"][0] is True
    assert "(within noise)" in " ".join(part([two, near], 20.0).notes)


def test_a_failed_rehearsal_confirms_nothing(two: Choice, one: Choice) -> None:
    failed = replace(one, rehearsed="RuntimeError: late")
    assert claims(two, failed)["rehearsed"] == (False, "0 of 1")
    assert "k01, 1 clusters: failed: RuntimeError: late" in part([two, failed], 20.0).notes
