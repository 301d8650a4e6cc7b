"""`python -m experiments.plan_quality --quick --only rehearsed`: a fleet is planned, rehearsed, and both are shown."""

from pathlib import Path

import pytest

from experiments.plan_quality import rehearsed, rehearsing
from experiments.plan_quality.__main__ import main
from tests.support.experiments import run_quick


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_planners_own_plan_is_rehearsed_and_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rehearsed, "QUICK_SECONDS", 5.0)
    monkeypatch.setattr(rehearsing, "SIMULATED_S", 60.0)
    part = run_quick(main, tmp_path, "--only", "rehearsed")["parts"]["rehearsed"]
    (row,) = part["tables"][0]["rows"]
    named = dict(zip(part["tables"][0]["columns"], row, strict=True))
    assert named["predicted"] > 0
    assert named["simulated"] == pytest.approx(named["predicted"], rel=0.05)
    assert named["rehearsed"] is not None, part["notes"]
    assert named["rehearsed"] > 0
