from collections.abc import Callable

import pytest

from cluster_planner.inputs.model_costs import Workload
from cluster_planner.predict.schedule_walk import Hop, PassTimes, update_s

FREE = Hop(0.0, 0.0, 0.0)


def synchronous(make_workload: Callable[..., Workload], schedule: str, update_every: int) -> Workload:
    return make_workload(schedule=schedule, max_staleness=0, update_every=update_every)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize(("stages", "micro_batches"), [(1, 3), (2, 4), (4, 2), (4, 16), (8, 16)])
def test_with_equal_stages_and_free_links_it_is_the_formula(
    make_workload: Callable[..., Workload], schedule: str, stages: int, micro_batches: int
) -> None:
    work = synchronous(make_workload, schedule, micro_batches)
    seconds = update_s(work, [PassTimes(1.0, 2.0, 0.5)] * stages, [FREE] * (stages - 1))
    assert seconds == pytest.approx(3.0 * (micro_batches + stages - 1) + 0.5)


def test_latency_is_paid_once_there_and_once_back_by_gpipe(make_workload: Callable[..., Workload]) -> None:
    work = synchronous(make_workload, "gpipe", 4)
    assert update_s(work, [PassTimes(1.0, 2.0, 0.0)] * 3, [Hop(0.0, 0.0, 10.0)] * 2) == pytest.approx(3 * 6 + 4 * 10)


def test_1f1b_pays_latency_each_time_that_it_holds_all_it_may(make_workload: Callable[..., Workload]) -> None:
    # The first of two stages holds two micro-batches: it waits for a round trip after each two.
    work = synchronous(make_workload, "1f1b", 8)
    seconds = update_s(work, [PassTimes(1.0, 2.0, 0.0)] * 2, [Hop(0.0, 0.0, 10.0)])
    assert seconds > 4 * 20


def test_a_slow_link_holds_up_each_micro_batch(make_workload: Callable[..., Workload]) -> None:
    work = synchronous(make_workload, "gpipe", 10)
    seconds = update_s(work, [PassTimes(1.0, 2.0, 0.0)] * 2, [Hop(5.0, 0.0, 0.0)])
    assert seconds == pytest.approx(1 + 10 * 5 + 1 + 10 * 2 + 2)


def test_a_step_that_takes_longer_than_the_bubble_delays_the_next_update(
    make_workload: Callable[..., Workload],
) -> None:
    work = synchronous(make_workload, "gpipe", 1)
    stages = [PassTimes(1.0, 1.0, 0.0), PassTimes(1.0, 1.0, 7.0)]
    assert update_s(work, stages, [FREE]) == pytest.approx(9.0)
