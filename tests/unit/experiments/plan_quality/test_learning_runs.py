"""What trainings with staleness and with rounds compute, and when a curve has come to a loss."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import pytest

from experiments.pipeline.tasks import Batch, Digits
from experiments.plan_quality import learning_runs
from experiments.plan_quality.learning_runs import in_rounds, reached, smoothed, stale


@dataclass(frozen=True)
class SameSamples(Digits):
    """Digits whose clusters all read the same."""

    batch: int = 4

    def batches(self, seed: int) -> Iterator[Batch]:
        return super().batches(0)


def test_seeds_learn_together_what_each_learns_alone() -> None:
    task = Digits(batch=4)
    both = next(stale(task, [0, 3], 1e-2, stages=3, every=4))
    alone = [next(stale(task, [seed], 1e-2, stages=3, every=4)) for seed in (0, 3)]
    assert both[0] == 4
    assert list(both[1]) == pytest.approx([losses[0] for _, losses in alone], rel=1e-3)


def test_one_cluster_with_rounds_learns_what_one_without_does() -> None:
    plain = list(islice(stale(Digits(batch=4), [3], 1e-3, stages=1, every=2), 3))
    found = list(islice(in_rounds(Digits(batch=4), [3], 1e-3, clusters=1, updates=2, lag=1, every=2), 3))
    assert [at for at, _ in found] == [at for at, _ in plain] == [2, 4, 6]
    assert [losses[0] for _, losses in found] == pytest.approx([losses[0] for _, losses in plain], rel=1e-3)


def test_clusters_that_see_the_same_learn_what_one_does_from_more_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning_runs, "WARMUP", 1)
    one, three = (
        list(islice(in_rounds(SameSamples(), [0], 1e-3, clusters=count, updates=2, lag=1, every=2), 3))
        for count in (1, 3)
    )
    assert [at for at, _ in three] == [3 * at for at, _ in one]
    assert [losses[0] for _, losses in three] == pytest.approx([losses[0] for _, losses in one], rel=1e-3)


def test_staleness_and_lag_change_what_is_learned() -> None:
    assert next(stale(Digits(4), [0], 1e-2, stages=1, every=4)) != next(stale(Digits(4), [0], 1e-2, stages=3, every=4))
    rounds = [next(in_rounds(Digits(4), [0], 1e-2, clusters=2, updates=1, lag=lag, every=8)) for lag in (1, 2)]
    assert rounds[0] != rounds[1]


def test_a_loss_is_reached_between_two_looks() -> None:
    curve = [(10, [3.0, 1.0]), (20, [2.0, 1.0]), (30, [1.0, 1.0])]
    assert reached(curve, 1.5, seeds=2, every=1) == [25, 10]
    assert reached(curve, 1.5, seeds=2, every=1, most=20) == [math.inf, 10]
    assert reached([], 1.5, seeds=2, every=1) == [math.inf, math.inf]


def test_no_more_is_trained_than_the_last_seed_needs() -> None:
    curve = iter([(10, [3.0]), (20, [1.0]), (30, [0.5])])
    reached(curve, 1.5, seeds=1, every=1)
    assert next(curve) == (30, [0.5])


def test_near_looks_are_averaged_and_far_ones_are_not() -> None:
    curve = [(10, [4.0]), (20, [2.0]), (30, [3.0]), (100, [1.0])]
    assert [smoothed(curve[:count], 10) for count in (1, 2, 3, 4)] == [(10, [4]), (15, [3]), (20, [3]), (100, [1])]
