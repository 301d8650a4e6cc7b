from dataclasses import replace

import pytest

from cluster_planner.predict.rounds_walk import CONTROL_S, ClusterTimes, FilledLink, RoundRules, walked_samples_per_s

EACH_S = RoundRules(update_samples=10, round_samples=40, max_lag=1, sending_s=0.0, later_s=0.0, way_s=0.0)
"""Two clusters of one update a second each make a round in 2 s."""
PAIR = (ClusterTimes(1.0, 0.0),) * 2


def test_rounds_that_take_no_time_slow_nobody() -> None:
    unequal = (ClusterTimes(1.0, 0.1), ClusterTimes(0.5, 0.2), ClusterTimes(0.25, 0.0))
    assert walked_samples_per_s(PAIR, EACH_S) == pytest.approx(20.0, rel=0.02)
    assert walked_samples_per_s(unequal, replace(EACH_S, round_samples=140)) == pytest.approx(70.0, rel=0.02)
    assert walked_samples_per_s(unequal, EACH_S) == pytest.approx(40.0), "a round has an update of each cluster"


@pytest.mark.parametrize("max_lag", [1, 2])
def test_of_long_rounds_one_follows_the_other(max_lag: int) -> None:
    """With a lag of two the latency of one is hidden behind the sending of the next."""
    rules = replace(EACH_S, max_lag=max_lag, sending_s=10.0, later_s=1.0)
    between_s = 10.0 + 2 * CONTROL_S + 1.0 if max_lag == 1 else 10.0
    made = walked_samples_per_s(PAIR, rules)
    assert made is not None
    assert 40 / between_s * 0.95 <= made <= 60 / between_s, (
        "a round holds its samples, and an update that was under way"
    )


def test_a_round_that_fits_makes_clusters_wait_where_updates_are_long() -> None:
    """It takes 1.8 s of 2 s, but whoever is in the middle of an update when it opens joins it later."""
    fitting = replace(EACH_S, round_samples=73, sending_s=1.8)
    made = walked_samples_per_s(tuple(ClusterTimes(update_s, 0.0) for update_s in (1.0, 0.8, 0.7)), fitting)
    assert made is not None
    assert made < 0.95 * 36.8
    short = tuple(ClusterTimes(update_s / 10, 0.0) for update_s in (1.0, 0.8, 0.7))
    less = replace(fitting, round_samples=730)
    assert walked_samples_per_s(short, less) == pytest.approx(368.0, rel=0.02), "with short updates nobody does"


def test_nothing_is_said_of_rounds_that_are_too_far_apart_to_be_walked() -> None:
    assert walked_samples_per_s(PAIR, replace(EACH_S, round_samples=100_000)) is None


def test_a_link_that_a_pipeline_fills_is_the_rounds_alone_only_while_its_cluster_waits() -> None:
    """Rounds are 2 s apart, and 1.5 s long by themselves."""
    filled = (ClusterTimes(1.0, 0.0, (FilledLink(1.5, 0.5),)), PAIR[1])
    made = walked_samples_per_s(filled, replace(EACH_S, sending_s=1.5))
    free = walked_samples_per_s(PAIR, replace(EACH_S, sending_s=1.5))
    always_filled = walked_samples_per_s(PAIR, replace(EACH_S, sending_s=3.0))
    assert made is not None
    assert free is not None
    assert always_filled is not None
    assert always_filled * 1.02 < made < free * 0.98


def test_the_opening_of_every_other_round_may_just_miss_an_update() -> None:
    """A round opens 10 ms after an update of 10 ms: every other one known in time, rounds are not evenly apart."""
    rules = RoundRules(update_samples=32, round_samples=64, max_lag=1, sending_s=0.0, later_s=0.0, way_s=0.0)
    made = walked_samples_per_s((ClusterTimes(0.0098, 0.0096),), rules)
    assert made is not None
    assert made < 0.98 * 32 / 0.0098
