""" """

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from cluster_planner import Fleet, ModelCosts, Node, Workload
from cluster_planner.inputs.spans import SpanCosts
from cluster_planner.pipeline.memory_fit import MemoryFit
from cluster_planner.search import large_fleets as blocks
from cluster_planner.search.candidates import Candidate
from cluster_planner.search.estimates import Group, GroupEstimate
from cluster_planner.search.large_fleets import LARGEST, _Block, blocks_of, by_blocks
from cluster_planner.search.search_context import SearchContext, SearchProblem


def test_a_block_offers_the_grouping_that_is_worth_most_at_the_price() -> None:
    large = (((0, 1, 2), GroupEstimate((0, 1, 2), 5.0, 5.0)),)
    small = (((0, 1), GroupEstimate((0, 1), 3.0, 3.0)), ((2, 3), GroupEstimate((2, 3), 2.5, 2.5)))
    block = _Block((0, 1, 2, 3), (large, small))
    assert block.bought(0.0) == small
    assert block.bought(2.0) == large
    assert block.bought(9.0) == ()
    assert block.dearest == large


@pytest.fixture
def lopsided(
    make_node: Callable[..., Node], make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]
) -> SearchProblem:
    """Six fast nodes near each other, and thirty that are slow."""
    fast = [make_node(f"fast{i}", flops_per_s=5e10, region="x", up_bytes_per_s=5e7) for i in range(6)]
    slow = [make_node(f"slow{i}", flops_per_s=5e7, region="y") for i in range(30)]
    fleet = Fleet((*fast, *slow))
    return SearchProblem(fleet, make_model(), make_workload(), tuple(range(36)), 2, 0)


def test_clusters_that_cost_the_others_more_than_they_bring_stay_spare(
    lopsided: SearchProblem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "LARGEST", 12)
    worked_out: list[Sequence[Group]] = []

    def work_out(phase: str, groups: Sequence[Group], words: str, rate: float) -> Candidate | None:
        worked_out.append(groups)
        return None

    spans = SpanCosts(lopsided.costs, lopsided.work)
    assert by_blocks(SearchContext(lopsided, MemoryFit(lopsided.fleet, spans, 2)), work_out) is None
    first, *_, last = worked_out
    for groups in (first, last):
        running = [node for group in groups for node in group]
        assert len(set(running)) == len(running)
        assert running
        assert set(running) <= set(range(6))


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
