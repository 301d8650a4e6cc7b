from dataclasses import replace

import pytest

from cluster_planner.predict.rounds_walk import CONTROL_S, ClusterTimes, RoundRules, walked_samples_per_s

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
