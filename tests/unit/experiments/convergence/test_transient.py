"""The predicted transient: by hand where everything is known, against a training, and not over where it is not."""

import math
from dataclasses import replace

import numpy as np
import pytest

from experiments.convergence import fleets
from experiments.convergence.cases import Case, table_of
from experiments.convergence.objectives import Quadratic
from experiments.convergence.theorem import Problem, Promise, Sums
from experiments.convergence.transient import BEND, Descent, Transient, descend, transient

PLAIN = Sums(effective_updates=1024.0, effective_clusters=1.0, error=0.0, stability=0.0, heaviest=1.0)
OBJECTIVE = Quadratic()
PROBLEM = OBJECTIVE.problem([slice(0, 24)])


@pytest.fixture(scope="module")
def descent() -> Descent:
    return descend(OBJECTIVE, PROBLEM.smoothness, 40.0)


def of_length(length: float, descent: Descent, problem: Problem = PROBLEM, **rest: float) -> Transient:
    return transient(Promise(problem, replace(PLAIN, effective_updates=length, **rest)), descent)


def test_the_error_of_a_quadratic_is_the_known_one_to_first_order(descent):
    step = Promise(PROBLEM, PLAIN).step
    time = step * PLAIN.effective_updates
    curvatures = np.asarray(OBJECTIVE.curvatures)
    gone = 1 - np.exp(-2 * curvatures * time)
    spent = 0.5 * (curvatures * OBJECTIVE.start**2 * gone).sum()
    spent += step / 4 * (curvatures**2 * OBJECTIVE.start**2 * gone).sum()
    noise = step * OBJECTIVE.sigma_sq / len(curvatures) * (time * curvatures / 2 - gone / 4).sum()
    assert of_length(1024, descent).error == pytest.approx((spent + noise) / time, rel=0.02)


def test_the_bend_is_the_slope_of_the_error(descent):
    for length in (32, 256):
        a, b = (of_length(length * factor, descent).error for factor in (0.9, 1.1))
        slope = math.log(b / a) / math.log(1.1 / 0.9)
        assert of_length(length, descent).bend == pytest.approx(slope + 0.5, abs=3e-3)


def test_a_training_comes_out_as_predicted():
    case = Case(OBJECTIVE, fleets.schedule(fleets.Shape(stages=2, staleness=1), 512))
    measured = table_of(case.train([512], seeds=24)).mean()
    descent = descend(OBJECTIVE, PROBLEM.smoothness, 20.0)
    assert transient(case.promise(512), descent).error == pytest.approx(measured, rel=0.06)


def test_it_is_not_over_before_the_descent_has_come_down_and_then_it_is(descent):
    assert not of_length(16, descent).is_over
    assert of_length(16, descent).bend > BEND
    assert of_length(2048, descent).is_over


def test_a_start_from_which_it_goes_down_slowly_makes_it_longer():
    slow = replace(OBJECTIVE, curvatures=(0.05,) * 24, sigma_sq=0.5)
    problem = replace(slow.problem([slice(0, 24)]), smoothness=1.0)
    descent = descend(slow, problem.smoothness, 300.0)
    lengths = [2**power for power in range(4, 18)]
    over = [length for length in lengths if of_length(length, descent, problem).is_over]
    assert over[0] >= 2**12
    assert over == lengths[lengths.index(over[0]) :]


def test_delays_that_matter_make_it_longer_and_a_step_that_they_keep_small_has_no_rate(descent):
    assert of_length(2048, descent).delays == 0
    late = of_length(2048, descent, error=8.0)
    assert late.delays > BEND
    assert not late.is_over
    capped = of_length(2048, descent, stability=1e4)
    assert capped.delays == math.inf
    assert not capped.is_over


def test_more_clusters_have_less_noise(descent):
    one, four = of_length(256, descent), of_length(256, descent, effective_clusters=4.0)
    assert four.error < one.error


def test_what_is_not_known_is_not_guessed(descent):
    with pytest.raises(ValueError, match="known until"):
        of_length(2**16, descent)
