import pytest

from ravnest.errors import InvalidInput
from ravnest.training.optimizer import ScheduleConfig, expected_updates, learning_rate, lr_ratio


def test_constant_is_level_and_needs_no_end():
    assert [learning_rate(0.5, ScheduleConfig(), update, None) for update in (0, 7, 10**6)] == [0.5] * 3


@pytest.mark.parametrize("name", ["constant", "linear", "cosine"])
def test_warm_up_rises_in_equal_steps_to_the_peak(name):
    schedule = ScheduleConfig(name=name, warmup_updates=4)
    assert [lr_ratio(schedule, update, 100) for update in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]


@pytest.mark.parametrize("name", ["linear", "cosine"])
def test_decay_halves_midway_and_stays_at_its_end(name):
    schedule = ScheduleConfig(name=name, warmup_updates=10, final_lr_ratio=0.2)
    assert lr_ratio(schedule, 60, 110) == pytest.approx(0.6)
    assert lr_ratio(schedule, 110, 110) == pytest.approx(0.2)
    assert lr_ratio(schedule, 10**9, 110) == pytest.approx(0.2)
    ratios = [lr_ratio(schedule, update, 110) for update in range(10, 112)]
    assert ratios == sorted(ratios, reverse=True)


def test_the_default_end_keeps_a_fast_cluster_learning():
    assert lr_ratio(ScheduleConfig(name="cosine"), 10**9, 5) == pytest.approx(0.1)


def test_a_decay_without_an_end_is_refused():
    with pytest.raises(InvalidInput, match="a linear schedule needs a known end"):
        lr_ratio(ScheduleConfig(name="linear"), 0, None)


@pytest.mark.parametrize("total", [1, 10])
def test_a_warm_up_as_long_as_the_run_is_refused(total):
    with pytest.raises(InvalidInput, match="10 warm-up updates leave none to decay over"):
        lr_ratio(ScheduleConfig(name="cosine", warmup_updates=10), 0, total)


def test_expected_updates_counts_whole_ones_and_at_least_one():
    assert [expected_updates(samples, 4, 8) for samples in (0.5, 31, 32, 95.9, 96)] == [1, 1, 1, 2, 3]
