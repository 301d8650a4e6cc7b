"""The sums by hand, one gradient after another, against the fast ones; and the closed forms above both."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.convergence import fleets
from experiments.convergence.schedule import Contribution, Schedule, steady
from experiments.convergence.theorem import Problem, Promise, Steady, closed_form, sums


def by_hand(schedule: Schedule, shares: list[float]) -> tuple[float, float]:
    """S̄ and D as docs/theory.md writes them: a loop over k, micro-batch, block and j < k."""
    weight = schedule.weight
    count, micro_batches = schedule.updates, schedule.version.shape[1]
    error = np.zeros(count)
    stability = 0.0
    for stage, share in enumerate(shares):
        column = np.zeros(count)
        for k in range(count):
            for m in range(micro_batches):
                alpha = np.zeros(count)
                for j in range(k):
                    unmerged = schedule.round[j] > schedule.merged[k, m, stage]
                    own = schedule.cluster[j] == schedule.cluster[k]
                    applied = own and schedule.update[j] < schedule.version[k, m, stage]
                    if unmerged:
                        alpha[j] = 1 - weight[j] if applied else weight[j]
                error[k] += share * (alpha**2).sum() / micro_batches
                column += weight[k] * alpha.sum() * alpha / micro_batches
        stability = max(stability, float((column / weight).max()))
    return float((weight * error).sum() / weight.sum()), stability


@settings(max_examples=40, deadline=None)
@given(
    made=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    delays=st.lists(st.integers(0, 5), min_size=1, max_size=3),
    lag=st.integers(0, 2),
)
def test_the_sums_are_those_of_the_document_and_below_the_closed_form(made, delays, lag):
    rounds = 5
    schedule = steady([Contribution(each, delays) for each in made], rounds, lag)
    shares = [1 / len(delays)] * len(delays)
    found = sums(schedule, shares)
    error, stability = by_hand(schedule, shares)
    assert found.error == pytest.approx(error, abs=1e-9)
    assert found.stability == pytest.approx(stability, abs=1e-9)
    most = closed_form(Steady(tuple(made), max(delays), lag), schedule.updates)
    assert found.error <= most.error + 1e-9
    assert found.stability <= most.stability + 1e-9
    assert found.effective_updates == pytest.approx(most.effective_updates)
    assert found.effective_clusters == pytest.approx(most.effective_clusters)


@pytest.mark.parametrize(
    "shape",
    [
        fleets.equal(3, staleness=3, stages=2, round=4, lag=2, ring_rounds=1.6),
        fleets.Shape(speeds=(1.0, 1.7, 2.3), staleness=2, stages=3, round=3, ring_rounds=0.8),
    ],
)
def test_what_the_machines_do_is_counted_right(shape):
    schedule = fleets.schedule(shape, 150)
    shares = [1 / shape.stages] * shape.stages
    found = sums(schedule, shares)
    assert (found.error, found.stability) == pytest.approx(by_hand(schedule, shares), rel=1e-9)
    assert schedule.staleness.max() <= shape.staleness
    assert (schedule.round[:, None, None] - 1 - schedule.merged).max() > 0


def late_then_fresh(clusters: int, staleness: int) -> Schedule:
    """A round an update, lag 1; all T late, but for the first cluster from `begin` on: fresh, and then on hold."""
    updates, begin = 10 * staleness, 5 * staleness
    schedule = steady([Contribution(1, [staleness])] * clusters, updates, lag=1)
    first = schedule.cluster == 0
    number = schedule.update[first]
    fresh = np.where(number < begin, 0, np.minimum(number, begin + 1))
    version, merged = schedule.version.copy(), schedule.merged.copy()
    version[first, 0, 0] = np.maximum(version[first, 0, 0], fresh)
    merged[first, 0, 0] = np.maximum(version[first, 0, 0] - 1, 0)
    return replace(schedule, version=version, merged=merged)


@pytest.mark.parametrize("clusters", [2, 4, 32])
def test_delays_that_vary_are_below_the_closed_form_where_the_square_of_one_row_would_not_do(clusters):
    staleness = 64
    schedule = late_then_fresh(clusters, staleness)
    schedule.check()
    assert schedule.staleness.max() == staleness
    found = sums(schedule, [1.0])
    most = closed_form(Steady((1,) * clusters, staleness, 1), schedule.updates)
    assert found.error <= most.error
    assert found.stability <= most.stability
    weight = 1 / clusters
    row = staleness * weight + (1 - weight) * 2 + (2 + staleness) * (1 - weight)
    assert (found.stability > 1.3 * row**2) is (clusters == 32)


@pytest.mark.parametrize("clusters", [1, 2, 3, 8])
@pytest.mark.parametrize(("staleness", "lag", "made"), [(0, 0, 1), (1, 1, 4), (7, 2, 3), (64, 1, 1)])
def test_the_step_of_the_corollary_is_admitted_with_the_closed_form(clusters, staleness, lag, made):
    most = closed_form(Steady((made,) * clusters, staleness, lag), 1000 * clusters)
    reach = staleness + (1 - 1 / clusters) * (2 * lag + 3) * made
    assert Promise(Problem(1.0, (1.0,), 1.0), most).largest_step >= (1 - 1e-9) / (2 * max(1, reach))


def test_one_cluster_without_delay_is_plain_sgd():
    found = sums(steady([Contribution(10, [0, 0])], 3), [0.5, 0.5])
    assert (found.error, found.stability, found.effective_updates, found.effective_clusters) == (0, 0, 30, 1)
    promise = Promise(Problem(2.0, (1.0, 3.0), 5.0), found)
    assert promise.largest_step == pytest.approx(0.5)
    step = promise.best_step
    assert promise.bound(step) == pytest.approx(2 * 5 / (step * 30) + 2 * step * 4)
    assert promise.bound(step) == pytest.approx(2 * (2 * 5 * 2 * 4 / 30) ** 0.5)
    assert promise.bound(0.51) == float("inf")


def test_a_constant_delay_is_counted_in_updates_and_in_their_square():
    found = sums(steady([Contribution(64, [7])], 20), [1.0])
    assert found.error == pytest.approx(7, rel=0.01)
    assert found.stability == pytest.approx(49)


def test_blocks_count_by_their_variance_in_the_error_and_by_the_oldest_in_the_stability():
    found = sums(steady([Contribution(64, [8, 0])], 20), [0.25, 0.75])
    assert found.error == pytest.approx(2, rel=0.01)
    assert found.stability == pytest.approx(64)
