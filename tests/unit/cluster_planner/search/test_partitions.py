import itertools

import numpy as np
import pytest

from cluster_planner.search.estimates import Group
from cluster_planner.search.partitions import KEPT, best_partitions


def divisions(nodes: list[int], clusters: int) -> list[tuple[Group, ...]]:
    found = {
        tuple(sorted(tuple(n for n, label in zip(nodes, labels, strict=True) if label == c) for c in range(clusters)))
        for labels in itertools.product(range(clusters), repeat=len(nodes))
    }
    return [groups for groups in found if all(groups)]


@pytest.mark.parametrize(("clusters", "least"), [(1, 1), (2, 2), (3, 1), (3, 2)])
def test_the_best_of_all_divisions_is_found(clusters: int, least: int) -> None:
    nodes = [2, 3, 5, 7, 8, 9]
    random = np.random.default_rng(clusters)
    worth: dict[Group, float] = {}

    def value_of(group: Group) -> float:
        return worth.setdefault(group, float(random.choice([0.0, random.uniform()])))

    found = best_partitions(nodes, clusters, least, value_of)
    sums = [
        sum(value_of(group) for group in groups)
        for groups in divisions(nodes, clusters)
        if all(len(group) >= least and value_of(group) > 0 for group in groups)
    ]
    assert [sum(map(value_of, groups)) for groups in found] == pytest.approx(sorted(sums, reverse=True)[: len(found)])
    assert len(found) == min(KEPT, len(sums))


def test_groups_worth_nothing_are_no_groups() -> None:
    assert best_partitions([0, 1, 2], 2, 1, lambda group: 0.0) == ()
