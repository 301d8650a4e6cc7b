import pytest

from cluster_planner import make_plan
from experiments.plan_quality.baselines import INDIVIDUALS, Site, genetic
from experiments.plan_quality.small_fleets import small_case


@pytest.fixture(scope="module")
def site() -> Site:
    return Site(*small_case(5))


def test_the_genetic_algorithm_betters_what_it_began_with_and_comes_near_the_plan(site: Site) -> None:
    began, evaluations = genetic(site, evaluations=INDIVIDUALS, seconds=None)
    assert evaluations == INDIVIDUALS
    evolved, evaluations = genetic(site, evaluations=600, seconds=None)
    assert 600 <= evaluations < 610
    plan = make_plan(site.fleet, site.costs, site.work, job={}, job_file="job.yaml")
    assert began <= evolved <= plan.predicted.objective * (1 + 1e-9)
    assert evolved > 0.9 * plan.predicted.objective
    assert genetic(site, evaluations=600, seconds=None) == (evolved, evaluations)
