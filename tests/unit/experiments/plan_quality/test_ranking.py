from dataclasses import replace

import numpy as np
import pytest

from experiments.plan_quality.baselines import Site
from experiments.plan_quality.ranking import correlation, groupings, random_clusters, random_groups, whole_plans
from experiments.plan_quality.small_fleets import small_case


@pytest.fixture(scope="module")
def site() -> Site:
    fleet, costs, work = small_case(5)
    return Site(fleet, costs, replace(work, average_every=256))


def test_only_the_order_counts() -> None:
    assert correlation([1.0, 2.0, 30.0], [0.1, 7.0, 7.5]) == pytest.approx(1.0)
    assert correlation([1.0, 2.0, 30.0], [3.0, 2.0, 1.0]) == pytest.approx(-1.0)
    assert correlation([1.0, 2.0, 2.0, 4.0], [1.0, 2.0, 3.0, 4.0]) == pytest.approx(4.5 / 22.5**0.5)


def test_random_groups_are_a_division_of_the_fleet(site: Site) -> None:
    random = np.random.default_rng(0)
    for clusters in (1, 2, 3):
        groups = random_groups(site.fleet, clusters, random)
        assert len(groups) == clusters
        assert sorted(i for group in groups for i in group) == list(range(len(site.fleet.nodes)))


def test_random_clusters_run_every_unit_once_and_fit_in_memory(site: Site) -> None:
    random = np.random.default_rng(0)
    made = [clusters for _ in range(20) if (clusters := random_clusters(site, 2, random)) is not None]
    assert made
    for cluster in (cluster for clusters in made for cluster in clusters):
        assert [unit for stage in cluster.stages for unit in range(*stage.units)] == list(range(site.spans.count))
        for index, stage in enumerate(cluster.stages):
            place = (index, len(cluster.stages))
            needed = site.spans.stage_memory_bytes(*stage.units, place, cluster.window, recomputes=stage.recomputes)
            assert needed <= site.fleet.node(stage.node).memory_bytes


def test_the_figures_follow_from_the_seed(site: Site) -> None:
    first = whole_plans(site, 6, 3, 1)
    assert first == whole_plans(site, 6, 3, 1)
    assert all(-1 <= each <= 1 for each in first)
    assert -1 <= groupings(site, 4, 1) <= 1
