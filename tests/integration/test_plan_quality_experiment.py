"""`python -m experiments.plan_quality --quick --only rehearsed`: a fleet is planned, rehearsed, and both are shown."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(300)
def test_the_planners_own_plan_is_rehearsed_and_compared(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "experiments.plan_quality", "--quick", "--only", "rehearsed"]
    command += ["--out", str(tmp_path), "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    part = json.loads(done.stdout)["parts"]["rehearsed"]
    (row,) = part["tables"][0]["rows"]
    named = dict(zip(part["tables"][0]["columns"], row, strict=True))
    assert named["predicted"] > 0
    assert named["simulated"] == pytest.approx(named["predicted"], rel=0.05)
    assert named["rehearsed"] is not None, part["notes"]
    assert named["rehearsed"] > 0
    assert (tmp_path / "result.png").read_bytes().startswith(b"\x89PNG")
