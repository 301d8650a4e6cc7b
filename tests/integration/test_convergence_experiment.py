"""`python -m experiments.convergence --quick`, as CI runs it. What it claims must hold: nothing depends on speed.

`speedup` and `staleness` take longer and stand on the same code: CI leaves them out.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PARTS = ["rate", "blocks"]
CONTROLS = {"constant step", "growing delay", "old data", "naive merge"}


@pytest.mark.timeout(280)
def test_what_it_claims_holds_and_its_controls_fail_the_check(tmp_path):
    command = [sys.executable, "-m", "experiments.convergence", "--quick", "--out", str(tmp_path), "--json"]
    done = subprocess.run(
        [*command, "--only", *PARTS], cwd=ROOT, capture_output=True, text=True, timeout=270, check=False
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert list(result["parts"]) == PARTS
    claims = [claim for part in result["parts"].values() for claim in part["claims"]]
    assert [claim for claim in claims if not claim["held"]] == []
    assert {claim["name"].removeprefix("control: ") for claim in claims if "control" in claim["name"]} == CONTROLS
    assert (tmp_path / "result.png").read_bytes().startswith(b"\x89PNG")
    assert "checks held" in (tmp_path / "convergence-report.md").read_text(encoding="utf-8")
