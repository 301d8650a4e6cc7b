"""`python -m experiments.fidelity --quick`, one plan of it: simulated and rehearsed, and both come to something."""

from pathlib import Path

import pytest

from experiments.fidelity import measure
from experiments.fidelity.__main__ import main
from tests.support.experiments import claims_of, run_quick


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_plan_is_simulated_and_rehearsed_and_both_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "QUICK_SECONDS", 5.0)
    monkeypatch.setattr(measure, "SIMULATED_S", 30.0)
    part = run_quick(main, tmp_path, "--plans", "p03")["parts"]["plans"]
    claims = claims_of(part)
    assert "1 of 1" in claims["simulated"]["measured"] or "0 of 1" in claims["simulated"]["measured"]
    assert claims["rehearsed"]["held"] is None
    assert "not part of --quick" in claims["rehearsed"]["measured"]
    (row,) = part["tables"][0]["rows"]
    named = dict(zip(part["tables"][0]["columns"], row, strict=True))
    assert named["simulated"] > 0
    assert named["rehearsed"] > 0, part["notes"]
    assert named["real"] is None
