"""`python -m experiments.fidelity --quick`, one plan of it: simulated and rehearsed, and both come to something."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(300)
def test_a_plan_is_simulated_and_rehearsed_and_both_are_shown(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "experiments.fidelity", "--quick", "--plans", "p03", "--out", str(tmp_path)]
    done = subprocess.run([*command, "--json"], cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    part = json.loads(done.stdout)["parts"]["plans"]
    claims = {claim["name"]: claim for claim in part["claims"]}
    assert "1 of 1" in claims["simulated"]["measured"] or "0 of 1" in claims["simulated"]["measured"]
    assert claims["rehearsed"]["held"] is None
    assert "not part of --quick" in claims["rehearsed"]["measured"]
    (row,) = part["tables"][0]["rows"]
    named = dict(zip(part["tables"][0]["columns"], row, strict=True))
    assert named["simulated"] > 0
    assert named["rehearsed"] > 0
    assert named["real"] is None
    assert (tmp_path / "result.png").read_bytes().startswith(b"\x89PNG")
