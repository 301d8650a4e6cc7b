from collections.abc import Callable, Sequence

import pytest

from cluster_planner import Fleet, ModelCosts, Node, Workload
from cluster_planner.inputs.spans import SpanCosts
from cluster_planner.pipeline.memory_fit import Holding
from cluster_planner.search import fleet_blocks as blocks
from cluster_planner.search.candidates import Candidate
from cluster_planner.search.estimates import Estimate, Group
from cluster_planner.search.large_fleets import _Block, by_blocks
from cluster_planner.search.search_context import Ground, Problem


def test_a_block_offers_the_grouping_that_is_worth_most_at_the_price() -> None:
    large = (((0, 1, 2), Estimate((0, 1, 2), 5.0, 5.0)),)
    small = (((0, 1), Estimate((0, 1), 3.0, 3.0)), ((2, 3), Estimate((2, 3), 2.5, 2.5)))
    block = _Block((0, 1, 2, 3), (large, small))
    assert block.bought(0.0) == small
    assert block.bought(2.0) == large
    assert block.bought(9.0) == ()
    assert block.dearest == large


@pytest.fixture
def lopsided(
    make_node: Callable[..., Node], make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]
) -> Problem:
    """Six fast nodes near each other, and thirty that are slow."""
    fast = [make_node(f"fast{i}", flops_per_s=5e10, region="x", up_bytes_per_s=5e7) for i in range(6)]
    slow = [make_node(f"slow{i}", flops_per_s=5e7, region="y") for i in range(30)]
    fleet = Fleet((*fast, *slow))
    return Problem(fleet, make_model(), make_workload(), tuple(range(36)), 2, 0)


def test_clusters_that_cost_the_others_more_than_they_bring_stay_spare(
    lopsided: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "LARGEST", 12)
    worked_out: list[Sequence[Group]] = []

    def work_out(phase: str, groups: Sequence[Group], words: str, rate: float) -> Candidate | None:
        worked_out.append(groups)
        return None

    spans = SpanCosts(lopsided.costs, lopsided.work)
    assert by_blocks(Ground(lopsided, Holding(lopsided.fleet, spans, 2)), work_out) is None
    first, *_, last = worked_out
    for groups in (first, last):
        running = [node for group in groups for node in group]
        assert len(set(running)) == len(running)
        assert running
        assert set(running) <= set(range(6))
