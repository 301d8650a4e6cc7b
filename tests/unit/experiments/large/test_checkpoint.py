import pytest
import torch

from experiments.large.checkpoint import QUICK, job_of, lost_share, saved_windows
from experiments.large.wide_model import data, model


def record(updates, commits, checkpoints):
    lines = [{"kind": "update", "at_s": at, "loss": 1.0} for at in updates]
    lines += [{"kind": "update", "at_s": at} for at in updates]  # a first stage's
    lines += [{"kind": "round", "round": number, "at_s": at} for number, at in commits.items()]
    return lines + [{"kind": "checkpoint", "round": number, "at_s": at} for number, at in checkpoints.items()]


COMMITS = {number: 10.0 * number for number in range(1, 8)}


def test_a_checkpoint_that_slows_nothing_costs_nothing():
    lines = record([0.5 * n for n in range(1, 160)], COMMITS, {1: 12.0, 3: 34.0, 7: 75.0})
    assert saved_windows(lines) == [(10.0, 12.0), (30.0, 34.0), (70.0, 75.0)]
    assert lost_share(lines) == pytest.approx(0.0)


def test_what_is_not_made_meanwhile_is_lost():
    updates = [0.5 * n for n in range(1, 160) if not 30.0 < 0.5 * n <= 34.0 or n % 2]
    assert lost_share(record(updates, COMMITS, {3: 34.0, 7: 75.0})) == pytest.approx(0.5)


def test_where_every_round_is_saved_nothing_compares():
    saved = {number: at + 1.0 for number, at in COMMITS.items()}
    assert lost_share(record([1.0 * n for n in range(80)], COMMITS, saved)) is None


def test_the_model_is_as_large_as_it_says_and_takes_its_data():
    made = model(layers=3, width=64)
    assert sum(p.nbytes for p in made.parameters()) == pytest.approx(4 * 3 * 64**2, rel=0.2)
    x, target = data(10, 2).train[3]
    assert made(x[None]).shape == (1, 4)
    assert target == int(torch.argmax(x[:4]))


def test_a_checkpoint_follows_every_fourth_round():
    job = job_of(QUICK[0])
    assert job.evaluate_every == 4 * job.average_every
