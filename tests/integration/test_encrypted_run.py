"""`ravnest run --encrypt`: it trains as ever, and every port of its transport asks for a key."""

import json
import shutil
from collections import Counter
from pathlib import Path

import psutil
import pytest

from tests.support.commands import Running, planned
from tests.support.zmtp import listening, mechanism

pytestmark = pytest.mark.timeout(600)


def test_an_encrypted_run_trains_and_every_lane_of_it_asks_for_a_key(tmp_path: Path) -> None:
    running = Running(shutil.copytree(planned(tmp_path / "plan"), tmp_path / "run"), "--encrypt")
    running.until("4 processes, encrypted")
    running.until_update(5)
    ends = [psutil.Process(running.process.pid), *running.stages()]
    assert len(ends) == 5
    found = Counter(mechanism(port) for end in ends for port in listening(end))
    assert found["CURVE"] == 2 * len(ends)
    assert set(found) <= {"CURVE", None}
    assert running.end() == 0, running.output
    assert "/s, encrypted)" in running.output
    summary = json.loads((running.folder / "r/summary.json").read_text())
    assert summary["encrypted"] is True
    assert summary["samples"] >= 960
    assert summary["held_out_loss"] < 0.5 * summary["baselines"]["guessing"]
