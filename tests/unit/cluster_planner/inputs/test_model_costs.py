import math
from collections.abc import Callable

import pytest

from cluster_planner.errors import InvalidInput
from cluster_planner.inputs.model_costs import ModelCosts, Workload


def test_costs_add_up(make_model: Callable[..., ModelCosts]) -> None:
    assert make_model(3, parameter_bytes=5).parameter_bytes == 15


def test_what_units_move_counts_as_flops(make_model: Callable[..., ModelCosts]) -> None:
    costs = make_model(3, flops=1e6, moved_bytes=10**5)
    assert [unit.flops for unit in costs.with_traffic(0.0).units] == [1e6] * 3
    weighted = costs.with_traffic(20.0)
    assert [unit.flops for unit in weighted.units] == [3e6] * 3
    assert (weighted.fingerprint, weighted.units[0].moved_bytes) == (costs.fingerprint, 10**5)


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
def test_impossible_costs_are_refused(make_model: Callable[..., ModelCosts], value: float) -> None:
    with pytest.raises(InvalidInput, match=r"u0\.flops"):
        make_model(1, flops=value)


def test_a_model_has_units() -> None:
    with pytest.raises(InvalidInput, match="at least one unit"):
        ModelCosts((), "x")


@pytest.mark.parametrize("field", ["micro_batch", "update_every", "average_every", "max_lag"])
def test_counts_of_a_workload_start_at_one(make_workload: Callable[..., Workload], field: str) -> None:
    with pytest.raises(InvalidInput, match=rf"workload\.{field}: .* 1 or more, not 0"):
        make_workload(**{field: 0})


def test_staleness_bounds_the_window(make_workload: Callable[..., Workload]) -> None:
    assert make_workload(max_staleness=0, update_every=5).largest_window == 5
    assert make_workload(max_staleness=2, update_every=5).largest_window == 15


@pytest.mark.parametrize(
    ("max_staleness", "update_every", "schedule"), [(0, 8193, "gpipe"), (0, 8193, "async"), (1, 4097, "async")]
)
def test_more_micro_batches_at_once_than_can_be_walked_are_refused(
    make_workload: Callable[..., Workload], max_staleness: int, update_every: int, schedule: str
) -> None:
    make_workload(max_staleness=max_staleness, update_every=update_every - 1, schedule=schedule)
    with pytest.raises(InvalidInput, match=r"workload\.update_every: .* must be at most 8,192, not 8,19"):
        make_workload(max_staleness=max_staleness, update_every=update_every, schedule=schedule)


def test_a_round_holds_an_update_of_each_cluster(make_workload: Callable[..., Workload]) -> None:
    work = make_workload(micro_batch=4, update_every=5, average_every=50)
    assert [work.round_samples(clusters) for clusters in (1, 2, 3)] == [50, 50, 60]
