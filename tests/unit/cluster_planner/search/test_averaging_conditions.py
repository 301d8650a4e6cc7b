from collections.abc import Callable
from dataclasses import replace

import pytest

from cluster_planner.inputs.fleet import Fleet, Node
from cluster_planner.inputs.model_costs import ModelCosts, Workload
from cluster_planner.inputs.spans import SpanCosts
from cluster_planner.search.averaging_conditions import Conditions, conditions_of
from cluster_planner.search.candidates import Assembler


def test_samples_per_s_fall_where_rounds_take_longer_than_they_may(make_workload: Callable[..., Workload]) -> None:
    work, found = make_workload(average_every=1000), Conditions(100.0, sending_s=20.0, hop_s=0.5)
    assert found.carried(1, work) == float("inf")
    assert found.carried(2, work) == pytest.approx(1000 / 21)
    assert found.carried(2, replace(work, max_lag=2)) == pytest.approx(1000 / 20)
    assert found.carried(2, replace(work, average_every=1)) == pytest.approx(2 * 16 / 21)
    assert found.worth(2, 1000 / 42, 7.0, work) == pytest.approx(2 * found.worth(2, 2000 / 21, 7.0, work))
    assert Conditions().carried(5, work) == float("inf")


def test_a_plan_whose_rounds_are_all_it_does_makes_what_they_carry(
    make_node: Callable[..., Node], make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]
) -> None:
    nodes = tuple(make_node(name, flops_per_s=1e15, up_bytes_per_s=1e4) for name in "abcd")
    work = make_workload(update_every=1)
    spans = SpanCosts(make_model(8, boundary_bytes=0, boundary_gradient_bytes=0), work)
    found = Assembler(Fleet(nodes), spans, spans, 2).candidate([("a", "b"), ("c", "d")])
    assert found is not None
    carried = conditions_of(found).carried(2, work)
    assert carried == pytest.approx(found.forecast.prediction.samples_per_s)
