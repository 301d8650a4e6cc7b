""" """

from collections.abc import Callable
from dataclasses import replace

import pytest

from cluster_planner.inputs.fleet import Fleet, Node
from cluster_planner.inputs.model_costs import ModelCosts, Workload
from cluster_planner.inputs.spans import SpanCosts
from cluster_planner.predict.objective import (
    ROUND_COST,
    STALENESS_COST,
    AveragingLimits,
    averaging_factor,
    staleness_factor,
)
from cluster_planner.search.candidates import Assembler, averaging_limits_of


def test_synchronous_training_by_one_cluster_counts_in_full(make_workload: Callable[..., Workload]) -> None:
    assert staleness_factor(4, 3, make_workload(max_staleness=0)) == 1.0
    assert averaging_factor(1, make_workload()) == 1.0


def test_a_lone_stage_is_never_stale(make_workload: Callable[..., Workload]) -> None:
    assert staleness_factor(8, 1, make_workload()) == 1.0


def test_staleness_costs_by_the_mean_delay(make_workload: Callable[..., Workload]) -> None:
    assert staleness_factor(5, 2, make_workload(update_every=4)) == pytest.approx(1 / (1 + STALENESS_COST * 0.5))
    windows = [staleness_factor(w, 2, make_workload(max_staleness=9)) for w in range(1, 20)]
    assert windows == sorted(windows, reverse=True)


def test_more_clusters_and_longer_rounds_cost(make_workload: Callable[..., Workload]) -> None:
    work = make_workload(micro_batch=4, update_every=4, average_every=48, max_lag=1)
    assert averaging_factor(2, work) == pytest.approx(1 / (1 + ROUND_COST * 2))
    factors = [averaging_factor(c, make_workload()) for c in range(1, 6)]
    assert factors == sorted(factors, reverse=True)
    assert averaging_factor(2, make_workload(average_every=10**6)) < averaging_factor(2, make_workload())
    assert averaging_factor(2, make_workload(max_lag=4)) < averaging_factor(2, make_workload())


def test_clusters_are_apart_for_an_update_at_least(make_workload: Callable[..., Workload]) -> None:
    fewest, few = (make_workload(micro_batch=4, update_every=4, average_every=n) for n in (1, 48))
    assert averaging_factor(3, fewest) == averaging_factor(3, few) == pytest.approx(1 / (1 + ROUND_COST * 2 * 1.584963))
    factors = [averaging_factor(c, fewest) for c in range(1, 6)]
    assert factors == sorted(factors, reverse=True)


def test_samples_per_s_fall_where_rounds_take_longer_than_they_may(make_workload: Callable[..., Workload]) -> None:
    work, found = make_workload(average_every=1000), AveragingLimits(100.0, sending_s=20.0, hop_s=0.5)
    assert found.carried(1, work) == float("inf")
    assert found.carried(2, work) == pytest.approx(1000 / 21)
    assert found.carried(2, replace(work, max_lag=2)) == pytest.approx(1000 / 20)
    assert found.carried(2, replace(work, average_every=1)) == pytest.approx(2 * 16 / 21)
    assert found.worth(2, 1000 / 42, 7.0, work) == pytest.approx(2 * found.worth(2, 2000 / 21, 7.0, work))
    assert AveragingLimits().carried(5, work) == float("inf")


def test_no_cluster_is_worth_nothing_whatever_rounding_leaves_of_its_rate(
    make_workload: Callable[..., Workload],
) -> None:
    """A search in parts of 1,000 nodes that dissolved the only cluster ended with a division by zero."""
    assert AveragingLimits().worth(0, 1e-14, 1e-14, make_workload()) == 0.0


def test_a_plan_whose_rounds_are_all_it_does_makes_what_they_carry(
    make_node: Callable[..., Node], make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]
) -> None:
    nodes = tuple(make_node(name, flops_per_s=1e15, up_bytes_per_s=1e4) for name in "abcd")
    work = make_workload(update_every=1)
    spans = SpanCosts(make_model(8, boundary_bytes=0, boundary_gradient_bytes=0), work)
    found = Assembler(Fleet(nodes), spans, 2).candidate([("a", "b"), ("c", "d")])
    assert found is not None
    carried = averaging_limits_of(found).carried(2, work)
    made = found.forecast.prediction.samples_per_s
    assert carried == pytest.approx(made, rel=1e-3), "but for the messages of the driver"
