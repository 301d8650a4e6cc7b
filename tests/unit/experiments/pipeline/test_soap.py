import pytest

from experiments.pipeline import trials
from experiments.pipeline.soap import ADAMW, CHEAP, FULL, WAYS, run_learning, run_steps, step_cost
from experiments.pipeline.trials import Outcome


def test_what_is_kept_follows_the_sides_that_are_rotated():
    """A block of width d: matrices of 3d × d, d × d, 4d × d and d × 4d, and 13 d elements in vectors."""
    d, parameters, scalars = 16, 12, 2  # the number of steps, and the weight of the momentum
    kept = {way: step_cost(optimizer, d).state_bytes for way, optimizer in WAYS.items()}
    moments = 2 * (12 * d * d + 13 * d) + scalars * parameters
    sides = {ADAMW: 0, CHEAP: 4, FULL: (9 + 1) + (1 + 1) + (16 + 1) + (1 + 16)}
    assert kept == {way: 4 * (moments + 2 * squares * d * d) for way, squares in sides.items()}


def test_steps_are_compared_with_the_block_s_own_computing():
    part = run_steps(quick=True)
    (table,) = part.tables
    assert [row[1] for row in table.rows] == list(WAYS)
    assert table.rows[0][3] == table.rows[0][5] == 1.0
    assert all(isinstance(claim.held, bool) for claim in part.claims)


def test_learning_is_paired_by_seeds(tmp_path, monkeypatch):
    """Trials by rule: one side costs 2 % where there are stages, and nothing else does."""

    def ruled(trial):
        worse = trial.stages is not None and trial.optimizer.get("sides") == "smaller"
        return Outcome((2 + trial.seed) * (1.02 if worse else 1.0), 0.0, trial.updates, (), 0.0)

    monkeypatch.setattr(trials, "run", ruled)
    part = run_learning(quick=True, book=tmp_path / "book.jsonl")
    (table,) = part.tables
    assert [row[2] for row in table.rows] == [*WAYS, *WAYS]
    assert [row[3] for row in table.rows] == pytest.approx([2.5] * 5 + [2.55])
    assert [claim.held for claim in part.claims] == [True, False]
    assert part.claims[1].measured == "+2.00 ± 0.00 %"
