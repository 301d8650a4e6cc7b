"""What part `program` makes of runs: no run here, the integration test has one."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from experiments.convergence import program_delays, program_rate
from experiments.convergence.program_plain import best_step, estimate, plain_error
from experiments.convergence.program_run import (
    Outcome,
    Probe,
    Trial,
    first_weights,
    made_of,
    mean_between,
    staleness_of,
)
from experiments.convergence.program_task import Draws, images
from experiments.convergence.theorem import Problem

PROBLEM = Problem(2.0, (3.0,), 1.5)


def outcome(error, delay=1, updates=64, clusters=1):
    ages = [np.minimum(np.arange(updates), each)[:, None] for each in (delay, 0)]
    late = {f"c{c}.s{s}": ages[s] for c in range(clusters) for s in range(2)}
    return Outcome(error, [(0, error)], late, {f"c{c}": updates for c in range(clusters)}, 4, 1.0)


def test_the_mean_between_probes_weighs_by_samples():
    assert mean_between([(0, 4.0), (10, 2.0), (40, 2.0)]) == pytest.approx((3.0 * 10 + 2.0 * 30) / 40)
    assert mean_between([(0, 4.0), (10, math.nan)]) == math.inf


def test_delays_and_updates_are_read_from_the_metrics():
    lines = [
        {"kind": "update", "cluster": "c0", "stage": 0, "update": 0, "staleness": [0, 0]},
        {"kind": "round", "round": 1},
        {"kind": "update", "cluster": "c0", "stage": 1, "update": 0, "staleness": [0, 0]},
        {"kind": "update", "cluster": "c0", "stage": 0, "update": 1, "staleness": [1, 0]},
    ]
    found = staleness_of(lines)
    assert found["c0.s0"].tolist() == [[0, 0], [1, 0]]
    assert found["c0.s1"].tolist() == [[0, 0]]
    assert made_of(lines) == {"c0": 2}


def test_the_bound_grows_with_the_delays_that_occurred():
    steps = 0.01
    fresh, late = (program_rate.bound_of(outcome(1.0, delay), PROBLEM, steps) for delay in (0, 5))
    assert fresh < late < math.inf
    by_hand = 2 * 1.5 / (steps * 64) + 2.0 * steps * 3.0
    assert fresh == pytest.approx(by_hand)


def test_the_step_is_the_theorem_s_but_not_beyond_the_curvature():
    assert best_step(PROBLEM, 1000) == pytest.approx(math.sqrt(2 * 1.5 / (2 * 3 * 1000)))
    assert best_step(PROBLEM, 1000, 4) == pytest.approx(2 * best_step(PROBLEM, 1000))
    assert best_step(PROBLEM, 1) == 0.25


def test_draws_are_of_the_samples_and_seeded():
    task = images(seed=3)
    inputs, target = task.train[7]
    again = images(seed=3).train[7]
    assert torch.equal(inputs, again[0])
    assert target == again[1]
    rows, labels = task.samples.tensors
    assert ((rows == inputs).all(dim=1) & (labels == target)).any()
    assert isinstance(task.train, Draws)


def test_sgd_without_delay_comes_down_and_stays_seeded():
    trial = Trial("digits", 16, 0.2)
    start = Probe("digits").squared_norm(first_weights(trial))
    error = plain_error(trial)
    assert error < start
    assert plain_error(trial) == error
    assert plain_error(replace(trial, seed=1)) != error


def test_the_estimates_are_of_the_problem():
    problem = estimate("digits")
    assert problem.gap == pytest.approx(math.log(10), abs=0.3)
    assert 0.3 < problem.smoothness < 5
    assert 0.5 < problem.whole_sigma_sq < 10


def test_a_rate_like_that_without_delay_passes_and_a_flatter_one_does_not():
    lengths = (64, 256, 1024)
    noise = np.exp(0.01 * np.random.default_rng(0).standard_normal((3, 4)))
    plain = np.asarray(lengths)[:, None] ** -0.5 * np.ones((3, 4))
    claims, _, _ = program_rate.rate(lengths, plain * noise, plain, [1.0] * 3)
    assert [claim.held for claim in claims] == [True, True, True]
    flat = np.asarray(lengths)[:, None] ** -0.3 * noise
    claims, _, _ = program_rate.rate(lengths, flat, plain, [0.1] * 3)
    assert [claim.held for claim in claims] == [False, False, False]


def test_where_a_step_is_beyond_the_theorem_s_there_is_no_bound_to_hold(monkeypatch):
    lengths = (64, 256, 1024)
    errors = np.asarray(lengths)[:, None] ** -0.5 * np.ones((3, 2))
    claims, (table,), _ = program_rate.rate(lengths, errors, errors, [math.inf, 1.0, 1.0])
    assert claims[0].held is None
    assert [row[3] for row in table.rows] == [program_rate.NO_BOUND, 1.0, 1.0]
    monkeypatch.setattr(program_rate, "by_length", lambda *_, **__: (errors[:2], errors[:2], [math.inf, 1.0]))
    _, (table,), _ = program_rate.characters(lengths[:2])
    assert [row[3] for row in table.rows] == [program_rate.NO_BOUND, 1.0]


@pytest.mark.parametrize("power", [0.0, 0.5])
def test_clusters_that_help_pass_and_clusters_that_do_not_help_do_not(monkeypatch, power):
    lengths = (64, 256, 1024)
    one = np.asarray(lengths, dtype=float)[:, None] ** -0.5 * np.ones((3, 2))

    def train(trial):
        error = trial.updates**-0.5 * trial.clusters**-power
        return outcome(error, updates=trial.updates, clusters=trial.clusters)

    monkeypatch.setattr(program_delays, "train", train)
    monkeypatch.setattr(program_delays, "plain_error", lambda t: t.updates**-0.5 * (t.update_samples / 4) ** -0.5)
    (claim,), (table,), _ = program_delays.clusters(PROBLEM, (1, 2), 512, lengths, one)
    assert claim.held is (power == 0.5)
    assert table.rows[0][6] == pytest.approx(1.0 if power else 0.5)


@pytest.mark.parametrize(("hurts_from", "held"), [(10, True), (1, False)])
def test_delays_that_hurt_below_the_threshold_do_not_pass(monkeypatch, hurts_from, held):
    monkeypatch.setattr(program_delays, "plain_error", lambda trial: 1.0)
    monkeypatch.setattr(
        program_delays, "train", lambda t: outcome(1.0 if t.staleness < hurts_from else 2.0, delay=t.staleness)
    )
    problem = Problem(1.0, (1.0,), 1.0)  # threshold √(128 / 8) = 4
    (below, threshold), (table,), _ = program_delays.delays(problem, 128, (2, 16), 2, corrected=True)
    assert (below.held, threshold.held) == (held, held)
    assert len(table.rows) == 6
