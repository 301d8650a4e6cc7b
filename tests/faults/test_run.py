"""What becomes of a run whose processes are killed, frozen or interrupted. Faults come at a step, chosen by a seed:
RAVNEST_FAULT_SEED tries others.
"""

import json
import os
import random
import shutil
import signal
import time
from pathlib import Path

import pytest

from tests.support.commands import DEADLINE_S, Running, gone, planned, ravnest

SEED = int(os.environ.get("RAVNEST_FAULT_SEED", "0"))
LONG: dict[str, object] = {"stop": {"samples": 500_000}, "optimizer": {"name": "adamw", "lr": 1e-3}}
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def long_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a plan for a run that nobody waits for."""
    return planned(tmp_path_factory.mktemp("long"), **LONG)


@pytest.fixture
def running(long_run: Path, tmp_path: Path) -> Running:
    return Running(shutil.copytree(long_run, tmp_path / "run"))


@pytest.fixture
def chance() -> random.Random:
    return random.Random(SEED)


def test_a_killed_stage_ends_the_run_by_name_and_leaves_a_good_checkpoint(
    running: Running, chance: random.Random
) -> None:
    running.until("checkpoint of round")
    running.until_update(chance.randrange(40, 120))
    family, victim = running.family(), chance.choice(running.stages())
    victim.kill()
    killed_s = time.monotonic()
    assert running.end() == 1
    assert time.monotonic() - killed_s < 30
    last = running.output.strip().splitlines()[-1]
    assert last.startswith("ravnest: error: stage c")
    assert "on node '" in last
    assert "died" in last
    assert "Traceback" not in running.output
    assert gone(family)
    checkpoints = running.folder / "r/checkpoints"
    latest = checkpoints / (checkpoints / "latest").read_text().strip()
    assert last.endswith(f"go on from {latest.name} with: ravnest run plan.yaml --resume --out r")
    saved = json.loads((latest / "manifest.json").read_text())
    assert saved["samples"] == 12 * sum(saved["versions"].values())
    planned(running.folder, **{**LONG, "stop": {"minutes": 0.05}})
    resumed = ravnest(running.folder, "run", "--out", "r", "--resume", "--json")
    assert resumed.returncode == 0, resumed.stderr
    assert json.loads(resumed.stdout)["samples"] > saved["samples"]


def test_a_frozen_stage_ends_the_run_by_name(running: Running, chance: random.Random) -> None:
    running.until_update(chance.randrange(5, 60))
    family, victim = running.family(), chance.choice(running.stages())
    victim.suspend()
    frozen_s = time.monotonic()
    assert running.end() == 1
    assert time.monotonic() - frozen_s < 60
    last = running.output.strip().splitlines()[-1]
    assert "on node '" in last
    assert "has been silent for" in last
    assert gone(family)


@pytest.mark.parametrize("which", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_writes_a_checkpoint_and_stops(
    running: Running, chance: random.Random, which: signal.Signals
) -> None:
    running.until_update(chance.randrange(5, 60))
    family = running.family()
    running.send(which)
    assert running.end() == 130, running.output
    assert (running.folder / "r/weights.safetensors").is_file()
    assert json.loads((running.folder / "r/summary.json").read_text())["stopped_early"] is True
    assert gone(family)


@pytest.mark.parametrize(
    ("which", "phase"),
    [(signal.SIGINT, "placing stages"), (signal.SIGTERM, "placing stages"), (signal.SIGTERM, "preparing")],
)
def test_an_interrupt_before_training_ends_at_once(running: Running, which: signal.Signals, phase: str) -> None:
    running.until(phase)
    family = running.family()
    running.send(which)
    assert running.end() == 130, running.output
    assert "Traceback" not in running.output
    assert gone(family)


def test_a_killed_driver_takes_its_stages_along(running: Running, chance: random.Random) -> None:
    running.until_update(chance.randrange(5, 60))
    stages = running.stages()
    assert len(stages) == 4
    running.process.kill()
    running.process.wait(timeout=DEADLINE_S)
    assert gone(stages, within_s=60)
