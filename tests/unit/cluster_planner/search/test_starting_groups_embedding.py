from collections.abc import Callable

import numpy as np
import pytest

from cluster_planner.inputs.fleet import Fleet, Node
from cluster_planner.search.starting_groups import classical_scaling, embed, largest_eigenvectors, scale_together


def test_scaling_keeps_distances_of_points_in_space() -> None:
    points = np.random.default_rng(0).normal(size=(7, 3))
    distance = np.linalg.norm(points[:, None] - points[None], axis=2)
    found = classical_scaling(distance, 3)
    assert np.allclose(np.linalg.norm(found[:, None] - found[None], axis=2), distance)


@pytest.mark.parametrize("count", [1, 2])
def test_fewer_points_than_dimensions_are_padded(count: int) -> None:
    assert classical_scaling(1.0 - np.eye(count), 3).shape == (count, 3)


def test_columns_are_scaled_by_one_number() -> None:
    scaled = scale_together(np.array([[0.0, 10.0], [2.0, 10.0], [4.0, 13.0]]))
    assert scaled.mean(axis=0) == pytest.approx([0.0, 0.0])
    assert scaled.var(axis=0).sum() == pytest.approx(1.0)


def test_what_is_the_same_for_all_counts_for_nothing(make_node: Callable[..., Node]) -> None:
    fleet = Fleet((make_node("a"), make_node("b"), make_node("c", flops_per_s=5e10)))
    points = embed(fleet, ["a", "b", "c"])
    assert np.isfinite(points).all()
    assert (points[:, 3] == 0).all()
    assert points[2, 4] > points[0, 4] == points[1, 4]


def test_places_far_apart_are_points_far_apart(home: Fleet) -> None:
    points = embed(home, home.names)[:, :3]
    within = np.linalg.norm(points[0] - points[1])
    across = np.linalg.norm(points[0] - points[3])
    assert across > 5 * within


def test_equal_distances_give_the_same_points_on_every_processor() -> None:
    """All eigenvalues but one are equal, so LAPACK may return any basis, and kernels differ in theirs."""
    points = classical_scaling(1.0 - np.eye(3), 2)
    expected = np.array([[0.04147299, -0.57585877], [0.47797183, 0.32384605], [-0.51944482, 0.25201272]])
    assert points == pytest.approx(expected, abs=1e-7)
    values, vectors = largest_eigenvectors(np.diag([2.0, 1.0, 2.0, 0.5]), 3)
    assert values == pytest.approx([2.0, 2.0, 1.0])
    assert np.diag([2.0, 1.0, 2.0, 0.5]) @ vectors == pytest.approx(vectors * values, abs=1e-8)
    assert vectors.T @ vectors == pytest.approx(np.eye(3), abs=1e-8)
