"""`python -m experiments.pipeline --quick`: its parts work, and what does not depend on speed holds.

`launching` is a run through Ray, which test_cli_run.py has; of the trainings one optimizer is tried. The experiment has
a process of its own, since it forks stages, which a process that has run a backward pass cannot do.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.experiments import check_form, claims_of

ROOT = Path(__file__).parents[3]
PARTS = ["paced", "overhead", "one_process", "quality_adamw", "depth", "blocks", "soap_steps", "soap_learning"]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_these_parts_run_and_what_does_not_depend_on_speed_holds(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "experiments.pipeline", "--quick", "--out", str(tmp_path), "--json"]
    done = subprocess.run(
        [*command, "--only", *PARTS], cwd=ROOT, capture_output=True, text=True, timeout=580, check=False
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    check_form(document, "pipeline", PARTS)
    assert claims_of(document["parts"]["paced"])["staleness"]["held"] is True
    assert claims_of(document["parts"]["soap_steps"])["state, width 16"]["held"] is True
    *stages, alone, plain = document["parts"]["overhead"]["tables"][0]["rows"]
    assert [row[0] for row in stages] == ["c0.s0", "c0.s1"]
    for _, wall_ms, compute_ms, handoff_ms, waiting_ms in stages:
        assert compute_ms > 0
        assert compute_ms + handoff_ms + waiting_ms == pytest.approx(wall_ms, rel=0.25)
    assert alone[1] > 0
    assert plain[1] > 0
    assert (tmp_path / "result.png").read_bytes().startswith(b"\x89PNG")
