"""`python -m experiments.pipeline --quick`, as CI runs it: parts work, and what does not depend on speed holds.

`launching` is a run through Ray, which test_cli_run.py has; of the trainings one optimizer is tried.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PARTS = ["paced", "overhead", "one_process", "quality_adamw", "depth"]
TIMELESS = {("paced", "staleness")}


@pytest.mark.timeout(400)
def test_these_parts_run_and_what_does_not_depend_on_speed_holds(tmp_path):
    command = [sys.executable, "-m", "experiments.pipeline", "--quick", "--out", str(tmp_path), "--json"]
    done = subprocess.run(
        [*command, "--only", *PARTS], cwd=ROOT, capture_output=True, text=True, timeout=380, check=False
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert list(result["parts"]) == PARTS
    for name, part in result["parts"].items():
        assert part["command"] == f"python -m experiments.pipeline --quick --only {name}"
        assert part["claims"], name
        for claim in part["claims"]:
            assert claim["measured"]
            assert claim["held"] is True or (name, claim["name"]) not in TIMELESS, claim
    assert (tmp_path / "result.png").read_bytes().startswith(b"\x89PNG")
