"""Slopes and crossings of what is known, and the check itself: it passes a true rate and refuses what is none."""

import math

import numpy as np
import pytest

from experiments.convergence.fitting import crossing, falls, interval, percentiles, resampled, slope

LENGTHS = [2**power for power in range(6, 17)]


def noisy(errors: list[float]) -> np.ndarray:
    return np.asarray(errors)[:, None] * np.exp(0.05 * np.random.default_rng(0).standard_normal((len(errors), 12)))


def test_a_true_rate_passes_and_its_interval_holds_it():
    found = slope(LENGTHS, noisy([k**-0.5 for k in LENGTHS]))
    assert found.low < -0.5 < found.high
    assert falls(found)


@pytest.mark.parametrize(
    "errors",
    [
        [1 / k + 0.01 for k in LENGTHS],  # a constant step: it falls like 1/K at first
        [k**-0.4 for k in LENGTHS],
        [1.0 for _ in LENGTHS],
    ],
)
def test_what_is_no_such_rate_is_refused(errors):
    assert not falls(slope(LENGTHS, noisy(errors)))


def test_a_constant_step_passes_where_one_looks_at_its_beginning_only():
    early = [2**power for power in range(6, 10)]
    assert falls(slope(early, noisy([1 / k + 1e-4 for k in early])))


def test_divergence_is_refused():
    errors = noisy([k**-0.5 for k in LENGTHS])
    errors[-1, 0] = np.inf
    assert not falls(slope(LENGTHS, errors))


def test_an_interval_is_students():
    found = interval(np.asarray([1.0, 2.0, 3.0, 4.0]))
    assert (found.mean, found.low, found.high) == pytest.approx((2.5, 0.446, 4.554), abs=1e-3)


def test_crossings_are_found_between_points():
    assert crossing([1, 4, 16], [1.0, 4.0, 16.0], 2.0, rising=True) == pytest.approx(2)
    assert crossing([1, 4, 16], [16.0, 4.0, 1.0], 2.0, rising=False) == pytest.approx(8)
    assert crossing([1, 4], [3.0, 4.0], 2.0, rising=True) == 1
    assert crossing([1, 4], [1.0, 1.0], 2.0, rising=True) == math.inf
    assert 1 < crossing([1, 4], [1.0, math.inf], 2.0, rising=True) < 4


def test_resampling_draws_seeds_and_percentiles_hold_the_middle():
    draws = resampled(3, 5, np.random.default_rng(0))
    assert [draw.shape for draw in draws] == [(5,)] * 3
    assert all(draw.min() >= 0 and draw.max() < 5 for draw in draws)
    assert percentiles([float(value) for value in range(101)]) == (2.0, 98.0)
