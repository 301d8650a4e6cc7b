"""`ravnest run` with the options of how a stage computes, in real processes."""

import json
from pathlib import Path

import pytest
import yaml

from tests.support.commands import planned, ravnest

pytestmark = pytest.mark.timeout(600)

OPTIONS = {
    "split in bfloat16": {"split_backward": "always", "precision": "bfloat16"},
    "recomputed in float16": {"activation_checkpointing": "always", "precision": "float16"},
}


@pytest.mark.parametrize("case", OPTIONS)
def test_a_run_trains(case: str, tmp_path: Path) -> None:
    folder = planned(tmp_path / "plan", **OPTIONS[case])
    plan = yaml.safe_load((folder / "plan.yaml").read_text())
    stages = [stage for cluster in plan["clusters"] for stage in cluster["stages"]]
    assert all(stage.get("recomputes", False) == ("recomputed" in case) for stage in stages)
    done = ravnest(folder, "run", "--out", "r", "--json")
    assert done.returncode == 0, done.stderr
    summary = json.loads((folder / "r/summary.json").read_text())
    assert summary["held_out_loss"] < 0.5 * summary["baselines"]["guessing"]
    lines = [json.loads(line) for line in (folder / "r/metrics.jsonl").read_text().splitlines()]
    splits = [(line["stage"], line["splits"]) for line in lines if line["kind"] == "split"]
    assert set(splits) == ({(1, True)} if "split" in case else set())
