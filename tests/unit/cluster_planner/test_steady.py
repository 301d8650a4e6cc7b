from collections.abc import Callable

import numpy as np
import pytest

from cluster_planner.costs import Workload
from cluster_planner.steady import Pipelines


def two_pipelines(averaged_bytes: float) -> Pipelines:
    """Of two stages and of one; only the first stage sends, over a link of 100 bytes/s."""
    return Pipelines(
        compute_s=np.array([1.0, 0.5, 2.0]),
        send_s=np.zeros(3),
        up_bytes=np.array([50.0, 0.0, 0.0]),
        down_bytes=np.zeros(3),
        averaged_up=np.full(3, averaged_bytes),
        averaged_down=np.zeros(3),
        up_bytes_per_s=np.full(3, 100.0),
        down_bytes_per_s=np.full(3, 100.0),
        first=np.array([0, 2]),
        round_trip_s=np.array([2.0, 2.0]),
        flushed_s=np.zeros(2),
        window=np.array([4, 1]),
    )


def test_without_averaging_each_cluster_runs_at_its_bottleneck(make_workload: Callable[..., Workload]) -> None:
    work = make_workload(micro_batch=4, update_every=100, average_every=10)
    assert two_pipelines(0.0).steady_rate(work) == pytest.approx(4 / 1.0 + 4 / 2.0)


def test_averaging_leaves_the_pipeline_the_rest_of_its_uplink(make_workload: Callable[..., Workload]) -> None:
    work = make_workload(micro_batch=4, update_every=100, average_every=10)
    pipelines = two_pipelines(150.0)
    rate = pipelines.steady_rate(work)
    left = 100.0 - 150.0 * rate / 10
    assert rate == pytest.approx(4 / (50.0 / left) + 2.0)
    assert pipelines.occupancy(rate, work).up_s[0] == pytest.approx(50.0 / left)
    assert np.isinf(pipelines.occupancy(100.0, work).up_s).all()
