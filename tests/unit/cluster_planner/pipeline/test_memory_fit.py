from collections.abc import Callable

import pytest

from cluster_planner.inputs.fleet import Fleet, Node
from cluster_planner.inputs.model_costs import ModelCosts, Workload
from cluster_planner.inputs.spans import SpanCosts
from cluster_planner.pipeline.memory_fit import MemoryFit


@pytest.fixture
def memory_fit_of(
    make_node: Callable[..., Node], make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]
) -> Callable[..., MemoryFit]:
    """Units need 7 copies · 10 bytes + 30 saved = 100 each, the last one too; a process needs 5."""

    def build(memories: list[int], units: int, least: int = 2) -> MemoryFit:
        nodes = tuple(make_node(f"n{i:02}", memory_bytes=memory) for i, memory in enumerate(memories))
        work = make_workload(micro_batch=1, max_staleness=0, process_bytes=5)
        spans = SpanCosts(make_model(units, parameter_bytes=10, saved_bytes=30), work)
        return MemoryFit(Fleet(nodes), spans, least)

    return build


def test_whole_units_and_a_process_each(memory_fit_of: Callable[..., MemoryFit]) -> None:
    memory_fit = memory_fit_of([205, 304, 104], units=4)
    assert (memory_fit.smallest_unit_bytes, memory_fit.whole_model_bytes) == (105, 405)
    assert not memory_fit.holds_a_unit("n02")
    assert memory_fit.holds(["n00", "n01"])
    assert not memory_fit_of([205, 204], units=4).holds(["n00", "n01"])


def test_one_node_is_too_few_however_large(memory_fit_of: Callable[..., MemoryFit]) -> None:
    assert not memory_fit_of([10**9], units=4).holds(["n00"])
    assert memory_fit_of([10**9], units=4, least=1).holds(["n00"])
    assert not memory_fit_of([10**9], units=4).holds([])


@pytest.mark.parametrize("count", [3, 12])
def test_many_nodes_reach_as_far_as_all_they_take(memory_fit_of: Callable[..., MemoryFit], count: int) -> None:
    names = [f"n{i:02}" for i in range(count)]
    assert memory_fit_of([205] * count, units=2 * count).holds(names)
    assert not memory_fit_of([205] * count, units=2 * count + 1).holds(names)
