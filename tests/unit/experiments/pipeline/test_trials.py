import json
import math
from dataclasses import replace
from itertools import islice

import pytest
import torch

from experiments.pipeline import trials
from experiments.pipeline.quality import STUDENT_975, interval, run_blocks, run_depth, sizes
from experiments.pipeline.tasks import Characters, Digits
from experiments.pipeline.trials import Book, Outcome, Trial, run

ADAMW = {"name": "adamw", "lr": 0.01}


@pytest.fixture
def characters(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("the cat sat on the mat and the hat. " * 60, encoding="utf-8")
    return Characters(text, layers=1, width=16, context=8, batch=4)


@pytest.mark.parametrize("kind", ["characters", "digits"])
def test_runs_of_one_seed_are_paired(kind, characters):
    task = characters if kind == "characters" else Digits(8)
    state = torch.random.get_rng_state()
    one, again, other = (list(islice(task.batches(seed), 3)) for seed in (1, 1, 2))
    assert all(torch.equal(a, b) for x, y in zip(one, again, strict=True) for a, b in zip(x, y, strict=True))
    assert not all(torch.equal(a[0], b[0]) for a, b in zip(one, other, strict=True))
    first, second, third = (task.model(seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not all(torch.equal(first[name], third[name]) for name in first)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_targets_are_the_next_characters(characters):
    inputs, targets = next(characters.batches(0))
    assert inputs.shape == targets.shape == (4, 8)
    assert torch.equal(inputs[:, 1:], targets[:, :-1])


def test_a_trial_learns_and_tells_how_fast(characters):
    outcome = run(Trial(characters, ADAMW, updates=60, every=20))
    assert [update for update, _ in outcome.curve] == [20, 40, 60]
    assert outcome.updates == 60
    assert outcome.loss < outcome.curve[0][1]
    assert 0 < outcome.accuracy <= 100
    assert outcome.reached(outcome.curve[1][1]) == 40
    assert outcome.reached(0.0) is None
    early = run(Trial(characters, ADAMW, updates=60, every=20, until=outcome.curve[1][1]))
    assert early.updates == 40
    assert early.curve == outcome.curve[:2]


def test_a_trial_that_diverges_has_an_infinite_loss(characters):
    outcome = run(Trial(characters, {"name": "sgd", "lr": 1e12}, updates=20))
    assert math.isinf(outcome.loss)
    assert outcome.updates < 20


def test_the_book_makes_no_trial_twice(characters, tmp_path, monkeypatch):
    made = []

    def counted(trial):
        made.append(trial)
        return Outcome(1.0, 50.0, trial.updates, ((10, 1.5), (20, 1.0)), 0.1)

    monkeypatch.setattr(trials, "run", counted)
    trial = Trial(characters, ADAMW, updates=20)
    first = Book(tmp_path / "runs" / "book.jsonl").outcome(trial)
    again = Book(tmp_path / "runs" / "book.jsonl")
    assert again.outcome(trial) == first
    assert len(made) == 1
    others = [replace(trial, **change) for change in ({"seed": 1}, {"delay": 1}, {"stages": 4}, {"updates": 21})]
    for other in (*others, replace(trial, optimizer={**ADAMW, "correction": "none"})):
        again.outcome(other)
    assert len(made) == 6


def test_the_book_says_which_commit_trained(characters, tmp_path, monkeypatch):
    monkeypatch.setattr(trials, "run", lambda trial: Outcome(1.0, 50.0, trial.updates, ((10, 1.5),), 0.1))
    path, trial = tmp_path / "book.jsonl", Trial(characters, ADAMW, updates=20)
    monkeypatch.setattr(trials, "commit", lambda: "0ld")
    for seed in (0, 1, 2):
        Book(path).outcome(replace(trial, seed=seed))
    first, *rest = [json.loads(line) for line in path.read_text().splitlines()]
    del first["commit"]  # as books once were
    path.write_text("".join(json.dumps(line) + "\n" for line in (first, *rest)))
    monkeypatch.setattr(trials, "commit", lambda: "new")
    book = Book(path)
    for seed in (0, 1, 3, 3):
        book.outcome(replace(trial, seed=seed))
    said = "Trained by a commit that was not recorded (1 trials), 0ld (1 trials), new (1 trials)."
    assert book.trained_by == said


def test_depth_counts_updates_to_a_loss_that_one_stage_reached(tmp_path, monkeypatch):
    """Trials by rule: a stage more costs 10 % more updates, and the correction halves that."""

    def ruled(trial):
        stages = trial.stages or 1
        cost = 1 + (0.05 if trial.optimizer.get("correction") == "look_ahead" else 0.1) * (stages - 1)
        curve = [(u, 4.0 - u / cost / 100) for u in range(trial.every, trial.updates + 1, trial.every)]
        ends = next((n for n, (_, loss) in enumerate(curve) if trial.until and loss <= trial.until), len(curve) - 1)
        return Outcome(curve[ends][1], 0.0, curve[ends][0], tuple(curve[: ends + 1]), 0.0)

    monkeypatch.setattr(trials, "run", ruled)
    part = run_depth(quick=True, book=tmp_path / "book.jsonl")
    (table,) = part.tables
    found = {(row[0], row[1]): row[2] for row in table.rows}
    assert found["AdamW, none", 1] == found["SOAP, look_ahead", 1] == 10
    assert found["AdamW, look_ahead", 8] == 20  # 13.5, at the next look
    assert found["AdamW, none", 32] is None  # 41 of the 20 that it is given
    assert [claim.held for claim in part.claims] == [None, False, False]


def test_blocks_are_judged_by_the_best_rate_over_no_delays(tmp_path, monkeypatch):
    """Trials by rule: delays cost 1 %, and 5 % without a correction."""

    def ruled(trial):
        cost = 1.0 if trial.stages == 1 else 1.01 if trial.optimizer["correction"] == "look_ahead" else 1.05
        return Outcome(2.0 * cost * trial.optimizer["lr"] / 1e-3, 0.0, trial.updates, (), 0.0)

    monkeypatch.setattr(trials, "run", ruled)
    part = run_blocks(quick=False, book=tmp_path / "book.jsonl")
    (table,) = part.tables
    assert [row[:3] for row in table.rows] == [
        ["AdamW", 1, 1e-3],
        ["AdamW, none", 8, 1e-3],
        ["AdamW, look_ahead", 8, 1e-3],
        ["SOAP, look_ahead", 8, 1e-3],
    ]
    assert [row[4] for row in table.rows] == pytest.approx([0, 0.05, 0.01, 0.01])
    assert [claim.held for claim in part.claims] == [True, True]


def testintervals():
    assert interval([1.0, 2.0, 3.0], "%") == "+2.00 ± 2.48 %"
    assert len(STUDENT_975) >= max(sizes(quick=False).seeds, sizes(quick=False).digit_seeds) - 1
