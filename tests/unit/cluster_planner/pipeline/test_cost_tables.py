from collections.abc import Callable

import numpy as np
import pytest

from cluster_planner.inputs.fleet import Fleet, Node
from cluster_planner.inputs.model_costs import ModelCosts, Workload
from cluster_planner.inputs.spans import SpanCosts
from cluster_planner.pipeline.cost_tables import (
    GroupNodes,
    both_ways,
    bottleneck_tables,
    ending,
    round_trip_tables,
    tables_that_fit,
)
from cluster_planner.plan import Stage
from cluster_planner.predict.stage_times import bottleneck_s, loads_of, round_trip_s

PLACES = ((0, 0, 2), (1, 2, 5), (2, 5, 6))
"""Three nodes, each with units from, to."""


@pytest.fixture
def fleet(make_node: Callable[..., Node]) -> Fleet:
    return Fleet(tuple(make_node(f"n{i}", flops_per_s=(i + 1) * 1e9, up_bytes_per_s=1e5 / (i + 1)) for i in range(3)))


@pytest.fixture
def spans(make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]) -> SpanCosts:
    return SpanCosts(make_model(6), make_workload(activation_checkpointing="auto"))


@pytest.mark.parametrize("averaging_per_s", [0.0, 1e-4])
def test_tables_hold_what_the_formulas_of_stages_say(fleet: Fleet, spans: SpanCosts, averaging_per_s: float) -> None:
    group, stages = GroupNodes(fleet, fleet.names), tuple(Stage(f"n{i}", (a, b)) for i, a, b in PLACES)
    longest = bottleneck_tables(spans, group, averaging_per_s, spans.flops_table())
    expected = bottleneck_s(fleet, stages, loads_of(fleet, spans, stages), averaging_per_s)
    assert longest.total(PLACES, np.maximum) == pytest.approx(expected)
    trips = round_trip_tables(spans, group, spans.flops_table())
    assert trips.total(PLACES, np.add) == pytest.approx(round_trip_s(fleet, spans, stages))


def test_a_span_without_room_for_what_it_keeps_recomputes(
    make_node: Callable[..., Node], spans: SpanCosts, fleet: Fleet
) -> None:
    small = spans.memory_bytes(0, 6, 8) - 1
    group = GroupNodes(Fleet((make_node("small", memory_bytes=small), *fleet.nodes[1:])), ("small", "n1", "n2"))
    both = both_ways(spans, lambda flops: bottleneck_tables(spans, group, 0.0, flops))
    found = tables_that_fit(both, spans.ways_that_fit(*group.rooms, 8)[None])
    assert found.stage[0, 0, 6] == both[1].stage[0, 0, 6] > both[0].stage[0, 0, 6]
    assert found.stage[1, 0, 6] == both[0].stage[1, 0, 6]


def test_only_who_has_to_runs_the_last_stage(fleet: Fleet, spans: SpanCosts) -> None:
    tables = ending(bottleneck_tables(spans, GroupNodes(fleet, fleet.names), 0.0, spans.flops_table()), [1])
    assert np.isinf(tables.stage[[0, 2], :, -1]).all()
    assert np.isinf(tables.stage[1, :, :-1]).all()
    assert np.isfinite(tables.stage[1, :-1, -1]).all()


def test_the_slowest_of_several_orders_is_as_slow_as_each_at_each_place(fleet: Fleet) -> None:
    slowest = GroupNodes.slowest_of(fleet, [("n0", "n1"), ("n2", "n0")])
    assert slowest.flops_per_s.tolist() == [1e9, 1e9]
    assert slowest.up_bytes_per_s.tolist() == pytest.approx([1e5 / 3, 1e5 / 2])
