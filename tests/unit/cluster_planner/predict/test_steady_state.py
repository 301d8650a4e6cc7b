from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from cluster_planner.inputs.model_costs import Workload
from cluster_planner.predict.steady_state import TOLD_S, WAITS_AT_MOST, PipelineArrays, RoundTimes

AT_ONCE = RoundTimes(0.0, 0.0, 0.0)


def two_pipelines(averaged_bytes: float) -> PipelineArrays:
    """Of two stages and of one; only the first stage sends, over a link of 100 bytes/s."""
    return PipelineArrays(
        compute_s=np.array([1.0, 0.5, 2.0]),
        send_s=np.zeros(3),
        up_bytes=np.array([50.0, 0.0, 0.0]),
        down_bytes=np.zeros(3),
        averaged_up=np.full(3, averaged_bytes),
        averaged_down=np.zeros(3),
        held_up_s=np.zeros(3),
        held_down_s=np.zeros(3),
        up_bytes_per_s=np.full(3, 100.0),
        down_bytes_per_s=np.full(3, 100.0),
        host=np.arange(3),
        first=np.array([0, 2]),
        round_trip_s=np.array([2.0, 2.0]),
        flushed_s=np.zeros(2),
        window=np.array([4, 1]),
    )


@pytest.fixture
def work(make_workload: Callable[..., Workload]) -> Workload:
    """A round opens after 2 s of both: 12 samples, 2 micro-batches of the first and 1 of the second."""
    return make_workload(micro_batch=4, update_every=1, average_every=12, max_staleness=100)


def test_without_averaging_each_cluster_runs_at_its_bottleneck(work: Workload) -> None:
    pace = two_pipelines(0.0).pace(work, None)
    assert pace.rates == pytest.approx([4 / 1.0, 4 / 2.0])
    assert pace.interval_s == float("inf")


def test_a_round_that_fits_beside_the_pipeline_slows_nobody(work: Workload) -> None:
    pace = two_pipelines(100.0 - 100 * TOLD_S).pace(work, AT_ONCE)
    assert (pace.waits, pace.interval_s) == (False, pytest.approx(2.0))
    assert pace.rates.sum() == pytest.approx(6.0)


def test_what_does_not_fit_is_sent_while_all_wait(work: Workload) -> None:
    pace = two_pipelines(150.0).pace(work, AT_ONCE)
    assert (pace.waits, pace.waits_at, pace.joins_last) == (True, 0, None)
    stops_later_s = 1 / 6  # of two clusters, with updates of 1 s
    interval_s = (2 + stops_later_s) * 50 / 100 + 150 / 100 + TOLD_S
    assert pace.interval_s == pytest.approx(interval_s)
    assert pace.rates == pytest.approx([4 * 2 / interval_s, 2 * 2 / interval_s])
    assert two_pipelines(101.0).pace(work, AT_ONCE).interval_s == pytest.approx(2.0 + 2 * 0.01 + TOLD_S)


def test_stages_of_one_host_share_its_uplink(work: Workload) -> None:
    together = replace(two_pipelines(75.0), host=np.array([0, 1, 0]))
    assert together.pace(work, AT_ONCE).interval_s == two_pipelines(150.0).pace(work, AT_ONCE).interval_s
    assert not two_pipelines(75.0).pace(work, AT_ONCE).waits


def test_rounds_by_themselves_and_long_updates_can_take_longer(work: Workload) -> None:
    alone = two_pipelines(0.0).pace(work, RoundTimes(3.0, 0.5, 1.0))
    assert (alone.waits, alone.waits_at, alone.joins_last) == (True, None, None)
    assert alone.interval_s == pytest.approx(3.5 + TOLD_S)
    around = replace(work, max_lag=2)
    assert two_pipelines(0.0).pace(around, RoundTimes(0.0, 0.0, 9.0)).interval_s == pytest.approx(4.5 + TOLD_S / 2)
    often = replace(work, average_every=1, update_every=4)
    pace = two_pipelines(0.0).pace(often, AT_ONCE)
    assert (pace.interval_s, pace.joins_last) == (pytest.approx(8.0), 1)
    assert pace.rates.sum() == pytest.approx(2 * 16 / 8)


def test_where_a_round_takes_about_as_long_as_it_is_apart_it_is_walked(work: Workload) -> None:
    """Of micro-batches of 1 and 2 s a round of 60 samples takes 10 s."""
    pipelines, often = two_pipelines(0.0), replace(work, average_every=60)
    walked, about = (
        pipelines.walked_s(often, RoundTimes(10.0, 0.1, 0.0), roughly=roughly) for roughly in (False, True)
    )
    assert 10.0 < walked < 11.0
    assert about == pytest.approx(walked, rel=0.05)
    assert pipelines.pace(often, AT_ONCE, walked).interval_s == walked
    assert pipelines.walked_s(often, RoundTimes(1.0, 0.1, 0.0)) == 0.0, "nobody waits for so short a round"
    assert pipelines.walked_s(often, RoundTimes(90.0, 0.1, 0.0)) == 0.0, "all stand still when so long a round ends"
    assert pipelines.walked_s(often, None) == 0.0


def test_a_round_is_walked_where_a_pipeline_leaves_it_too_little_of_a_link(work: Workload) -> None:
    """Alone a round takes 9 s of 20 s, but the first stage's pipeline leaves half of its uplink."""
    pipelines, often = two_pipelines(900.0), replace(work, average_every=120)
    walked = pipelines.walked_s(often, AT_ONCE)
    assert 20.0 <= walked < 22.0
    assert pipelines.walked_s(often, AT_ONCE, roughly=True) == pytest.approx(walked, rel=0.05)
    assert two_pipelines(700.0).walked_s(often, AT_ONCE) == 0.0, "that fits, 14 s long"


def test_a_ring_gets_no_further_than_a_link_that_a_pipeline_fills(work: Workload) -> None:
    """The first stage's pipeline fills its uplink: its ring, which takes 5 s elsewhere, begins when all wait."""
    filled = replace(two_pipelines(50.0), up_bytes=np.array([100.0, 0.0, 0.0]))
    held = replace(filled, held_up_s=np.array([5.0, 0.0, 0.0]))
    stops_later_s = 1 / 6
    assert filled.pace(work, AT_ONCE).interval_s == pytest.approx(2 + stops_later_s + 0.5 + TOLD_S)
    assert held.pace(work, AT_ONCE).interval_s == pytest.approx(2 + stops_later_s + 5 + TOLD_S)
    half = replace(held, up_bytes=np.array([90.0, 0.0, 0.0]))  # of the round's 0.5 s, 0.2 s are sent meanwhile
    assert half.pace(work, AT_ONCE).interval_s == pytest.approx(2 + stops_later_s * (1 - 5 * 0.1 / 0.5) + 3 + TOLD_S)
    fits = replace(held, up_bytes=np.array([50.0, 0.0, 0.0]))
    assert fits.pace(work, AT_ONCE).interval_s == pytest.approx(2.0)


def test_rounds_in_which_nothing_is_sent_wait_for_the_driver(work: Workload) -> None:
    fast = replace(two_pipelines(0.0), compute_s=np.full(3, 1e-5), up_bytes=np.zeros(3), round_trip_s=np.full(2, 1e-5))
    pace = fast.pace(replace(work, average_every=8), AT_ONCE)
    assert (pace.waits, pace.interval_s) == (True, pytest.approx(TOLD_S)), "each update of both opens a round"
    opened_s = 1000 / (2 * 4 / 1e-5)
    late = fast.pace(replace(work, average_every=1000), AT_ONCE)
    assert late.interval_s == pytest.approx(opened_s * (1 + WAITS_AT_MOST)), "they train on until they hear of one"


def test_rough_times_hold_for_lone_clusters_and_for_rounds_on_their_way_together(work: Workload) -> None:
    """A search drops, without a look at its exact worth, what is worth too little roughly."""
    both = vars(two_pipelines(0.0)).items()  # of three stages, or of two clusters
    alone = PipelineArrays(**{name: each[: len(each) - 1] for name, each in both})
    assert alone.walked_s(replace(work, average_every=4), AT_ONCE, roughly=True) == 0.0
    together, takes = replace(work, average_every=12, max_lag=3), RoundTimes(0.5, 2.0, 0.0)
    exact = two_pipelines(0.0).walked_s(together, takes)
    assert two_pipelines(0.0).walked_s(together, takes, roughly=True) <= max(exact, 2.0) * 1.1
