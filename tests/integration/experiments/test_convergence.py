"""`python -m experiments.convergence --quick`. What it claims must hold: nothing depends on speed.

`speedup` and `staleness` take longer and stand on the same code: CI leaves them out. What `program` claims depends on
the machine: of it one training of two clusters is run.
"""

from pathlib import Path

import pytest

from experiments.convergence.__main__ import main
from experiments.convergence.program_run import Trial, train
from tests.support.experiments import run_quick

PARTS = ["rate", "blocks", "backward"]
CONTROLS = {
    "constant step",
    "growing delay",
    "old data",
    "naive merge",
    "newest weights",
    "vanishes with the step",
}


@pytest.mark.slow
def test_what_it_claims_holds_and_its_controls_fail_the_check(tmp_path: Path) -> None:
    document = run_quick(main, tmp_path, "--only", *PARTS)
    assert list(document["parts"]) == PARTS
    claims = [claim for part in document["parts"].values() for claim in part["claims"]]
    assert [claim for claim in claims if claim["held"] is False] == []
    not_judged = {claim["name"] for claim in claims if claim["held"] is None}
    assert not_judged == {"slope: quadratic, fleet", "slope: logistic, fleet"}  # too short for it
    assert {claim["name"].removeprefix("control: ") for claim in claims if "control" in claim["name"]} == CONTROLS
    assert "checks held" in (tmp_path / "convergence-report.md").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_training_of_the_real_program_is_measured() -> None:
    found = train(Trial("digits", 24, 0.2, clusters=2, stages=2, staleness=2, round=4))
    late = {stage: ages.tolist() for stage, ages in found.staleness.items()}
    assert set(late) == {"c0.s0", "c0.s1", "c1.s0", "c1.s1"}
    assert all(0 <= age <= 2 for ages in late.values() for (age,) in ages)
    assert sum(found.made.values()) >= 48
    samples = [each for each, _ in found.probes]
    assert samples == sorted(samples)
    assert samples[0] == 0
    assert samples[-1] == 4 * sum(found.made.values())
    errors = [error for _, error in found.probes]
    assert 0 < errors[-1] < errors[0]
    assert min(errors) < found.error < errors[0]
