"""`python -m experiments.pipeline --quick`, as CI runs it: all parts work, and what does not depend on speed holds."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.pipeline.__main__ import PARTS

ROOT = Path(__file__).parents[2]
TIMELESS = {("paced", "staleness"), ("launching", "whole"), ("launching", "tensors")}


@pytest.mark.timeout(400)
def test_every_part_runs_and_what_does_not_depend_on_speed_holds(tmp_path):
    parts = [part for part in PARTS if part != "launching"]
    command = [sys.executable, "-m", "experiments.pipeline", "--quick", "--out", str(tmp_path), "--json"]
    done = subprocess.run(
        [*command, "--only", *parts], cwd=ROOT, capture_output=True, text=True, timeout=380, check=False
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert list(result["parts"]) == parts
    for name, part in result["parts"].items():
        assert part["command"] == f"python -m experiments.pipeline --quick --only {name}"
        assert part["claims"], name
        for claim in part["claims"]:
            assert claim["measured"]
            assert claim["held"] is True or (name, claim["name"]) not in TIMELESS, claim
    assert (tmp_path / "result.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.timeout(200)
def test_a_run_through_ray_keeps_the_planned_memory(tmp_path):
    command = [sys.executable, "-m", "experiments.pipeline", "--quick", "--out", str(tmp_path), "--only", "launching"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    (part,) = json.loads((tmp_path / "result.json").read_text())["parts"].values()
    held = {claim["name"]: claim["held"] for claim in part["claims"]}
    assert held["whole"] is True
    assert held["tensors"] is True
