import numpy as np

from cluster_planner.search.fleet_blocks import LARGEST, blocks_of


def test_blocks_are_small_and_hold_everyone_once() -> None:
    points = np.random.default_rng(0).normal(size=(7 * LARGEST, 3))
    nodes = range(3, len(points))
    blocks = blocks_of(points, nodes)
    assert sorted(node for block in blocks for node in block) == list(nodes)
    sizes = [len(block) for block in blocks]
    assert min(sizes) >= LARGEST / 2
    assert max(sizes) <= LARGEST


def test_who_is_far_apart_is_in_different_blocks() -> None:
    places = np.repeat([[0.0], [100.0]], LARGEST, axis=0)
    points = places + np.random.default_rng(1).normal(size=places.shape)
    assert blocks_of(points, range(len(points))) == [tuple(range(LARGEST)), tuple(range(LARGEST, 2 * LARGEST))] or (
        blocks_of(points, range(len(points)))[::-1] == [tuple(range(LARGEST)), tuple(range(LARGEST, 2 * LARGEST))]
    )


def test_equal_points_can_be_divided() -> None:
    assert len(blocks_of(np.zeros((2 * LARGEST, 2)), range(2 * LARGEST))) == 2
