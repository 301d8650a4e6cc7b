"""A job that averages by halves of bytes and with an outer optimizer, as a user runs it: processes, Ray, a resume."""

import json
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file

from tests.support.commands import planned, ravnest

pytestmark = pytest.mark.timeout(600)

AVERAGING = {"weighting": "equal", "outer": {"nesterov": {"lr": 0.7, "momentum": 0.5}}, "wire": "int8"}


def momentum(run: Path) -> dict[str, list[torch.Tensor]]:
    """By parameter: the outer optimizer's momentum that each cluster's stage saved."""
    latest = run / "checkpoints" / (run / "checkpoints" / "latest").read_text().strip()
    found: dict[str, list[torch.Tensor]] = {}
    for path in sorted(latest.glob("optimizer-*.safetensors")):
        for name, tensor in load_file(path).items():
            if name.endswith(".outer_momentum"):
                found.setdefault(name, []).append(tensor)
    return found


def test_a_run_with_int8_and_nesterov_learns_and_resumes(tmp_path: Path) -> None:
    folder = planned(tmp_path, averaging=AVERAGING)
    plan = yaml.safe_load((folder / "plan.yaml").read_text())
    assert plan["job"]["averaging"] == AVERAGING
    assert plan["workload"]["averaged_bytes_per_parameter_byte"] == pytest.approx((1 + 4 / 256) / 4)
    done = ravnest(folder, "run", "--out", "r", "--json")
    assert done.returncode == 0, done.stderr
    before = json.loads(done.stdout)
    assert before["held_out_loss"] < 0.6 * before["baselines"]["guessing"]
    saved = momentum(folder / "r")
    assert saved
    assert all(len(copies) == 2 and torch.equal(*copies) and copies[0].any() for copies in saved.values())
    planned(folder, averaging=AVERAGING, stop={"samples": 1400})
    more = ravnest(folder, "run", "--out", "r", "--resume", "--json")
    assert more.returncode == 0, more.stderr
    after = json.loads(more.stdout)
    assert after["samples"] >= 1400
    assert after["held_out_loss"] < before["held_out_loss"] + 0.1
    planned(folder, averaging={}, stop={"samples": 1800})
    other = ravnest(folder, "run", "--out", "r", "--resume")
    assert other.returncode == 2
    assert "job.averaging.outer" in other.stderr
