from collections.abc import Sequence

import numpy as np
import pytest

from cluster_planner.search.starting_groups import group_nodes, repair

TWO_PLACES = np.array([[0.0], [0.1], [0.2], [5.0], [5.1], [5.2]])


def test_k_means_finds_places() -> None:
    groups = group_nodes(TWO_PLACES, 2, 0, lambda group: len(group) >= 2)
    assert groups == ((0, 1, 2), (3, 4, 5))


def test_one_group_is_everyone_or_nothing() -> None:
    assert group_nodes(TWO_PLACES, 1, 0, lambda group: True) == ((0, 1, 2, 3, 4, 5),)
    assert group_nodes(TWO_PLACES, 1, 0, lambda group: False) is None


@pytest.mark.parametrize("k", [2, 3])
def test_equal_nodes_can_be_told_apart(k: int) -> None:
    groups = group_nodes(np.zeros((6, 2)), k, 0, lambda group: len(group) >= 2)
    assert groups is not None
    assert sorted(i for group in groups for i in group) == list(range(6))
    assert all(len(group) >= 2 for group in groups)
    assert groups == group_nodes(np.zeros((6, 2)), k, 0, lambda group: len(group) >= 2)


def test_more_groups_than_places_leave_none_empty() -> None:
    places = np.repeat([[0.0], [9.0]], 4, axis=0)
    groups = group_nodes(places, 5, 0, lambda group: len(group) >= 1)
    assert groups is not None
    assert len(groups) == 5
    assert sorted(i for group in groups for i in group) == list(range(8))


def test_repair_brings_the_nearest_node_that_can_be_spared() -> None:
    def holds(group: Sequence[int]) -> bool:
        return len(group) >= 2

    points = np.array([[0.0], [1.0], [2.0], [9.0]])
    assert repair(points, [[0, 1, 2], [3]], holds) == [[0, 1], [3, 2]]
    assert repair(points, [[0, 1, 2, 3], []], holds) is not None


def test_no_one_to_spare_means_no_grouping() -> None:
    assert repair(TWO_PLACES[:3], [[0, 1], [2]], lambda group: len(group) >= 2) is None
