import itertools
from collections.abc import Callable

import numpy as np
import pytest

from cluster_planner.inputs.fleet import Fleet, Node
from cluster_planner.inputs.model_costs import ModelCosts, Workload
from cluster_planner.inputs.spans import SpanCosts
from cluster_planner.pipeline.best_pipeline import plan_pipeline
from cluster_planner.pipeline.value_bounds import most_of_subsets, most_worth
from cluster_planner.predict.objective import staleness_factor
from cluster_planner.predict.stage_times import period_s


@pytest.mark.parametrize("schedule", ["async_1f1b", "1f1b", "gpipe"])
@pytest.mark.parametrize("seed", range(4))
def test_no_pipeline_is_worth_more_than_the_bound_of_its_nodes(
    seed: int,
    schedule: str,
    make_node: Callable[..., Node],
    make_model: Callable[..., ModelCosts],
    make_workload: Callable[..., Workload],
) -> None:
    random = np.random.default_rng(seed)
    fleet = Fleet(
        tuple(
            make_node(
                f"n{i}",
                flops_per_s=float(random.uniform(2e9, 3e10)),
                memory_bytes=round(random.uniform(1.1e8, 2e8)),
                up_bytes_per_s=float(random.choice([1e5, 1e6, 1e7])),
            )
            for i in range(4)
        )
    )
    changes = {} if schedule == "async_1f1b" else {"schedule": schedule, "max_staleness": 0}
    spans = SpanCosts(make_model(7), make_workload(**changes))
    least = 1 + seed % 2
    bounds = most_of_subsets(fleet, spans, fleet.names, least)
    tightness = []
    for size in range(1, 5):
        for part in itertools.combinations(range(4), size):
            bound = bounds[sum(1 << i for i in part)]
            found = plan_pipeline(fleet, spans, [fleet.names[i] for i in part], 0.0, least)
            assert found is None or found.value <= bound * (1 + 1e-9)
            assert found is not None or size < least or bound >= 0
            tightness += [found.value / bound] if found is not None else []
    assert schedule != "async_1f1b" or np.median(tightness) > 0.8  # it is worth comparing by


def test_no_window_is_worth_more_than_the_bound_of_these_times(make_workload: Callable[..., Workload]) -> None:
    work = make_workload()
    for longest_s, trip_s in itertools.product((0.1, 0.3, 1.0), (0.4, 1.0, 5.0)):
        for window in range(1, work.largest_window + 1):
            made = work.micro_batch / period_s(longest_s, trip_s, window, work)
            assert made * staleness_factor(window, 3, work) <= most_worth(longest_s, trip_s, work) * (1 + 1e-9)


def test_with_small_windows_only_a_long_trip_is_worth_less(make_workload: Callable[..., Workload]) -> None:
    work = make_workload()
    assert most_worth(0.1, 1.0, work, (1, 2)) == pytest.approx(work.micro_batch / 0.5 * staleness_factor(2, 3, work))
    assert most_worth(0.1, 1.0, work, (1, 2)) < most_worth(0.1, 1.0, work)
