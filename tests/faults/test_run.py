"""What becomes of a run whose processes are killed, frozen or interrupted. Faults come at a step, chosen by a seed:
RAVNEST_FAULT_SEED tries others.

Most of a run's time is the start of Ray and of the stages' processes. So interrupted runs have two processes only, the
frozen run waits for its end while other tests run, and runs that are interrupted before training start together.
"""

import json
import os
import random
import shutil
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from tests.support.commands import DEADLINE_S, Running, gone, planned, ravnest

SEED = int(os.environ.get("RAVNEST_FAULT_SEED", "0"))
LONG: dict[str, object] = {"stop": {"samples": 500_000}, "optimizer": {"name": "adamw", "lr": 1e-3}}
NOTICED_S = 60.0
"""A loss is noticed long before: this only tells a driver that notices from one that does not."""

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def long_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a plan for a run of four processes that nobody waits for."""
    return planned(tmp_path_factory.mktemp("long"), **LONG)


@pytest.fixture(scope="module")
def long_run_of_two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same on two machines: two clusters of one stage each."""
    return planned(tmp_path_factory.mktemp("two"), nodes=("a0", "b0"), **LONG)


@pytest.fixture
def chance() -> random.Random:
    return random.Random(SEED)


@pytest.fixture(scope="module", autouse=True)
def frozen(long_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, list[psutil.Process]]]:
    """A run of which one stage is frozen, and all its processes. It ends while other tests run."""
    chance = random.Random(SEED)
    running = Running(shutil.copytree(long_run, tmp_path_factory.mktemp("frozen") / "run"))
    running.until_update(chance.randrange(5, 60))
    family = running.family()
    chance.choice(running.stages()).suspend()
    yield running, family
    if running.process.poll() is None:
        running.process.kill()
        running.end()


def test_a_killed_stage_ends_the_run_by_name_and_leaves_a_good_checkpoint(
    long_run: Path, tmp_path: Path, chance: random.Random
) -> None:
    running = Running(shutil.copytree(long_run, tmp_path / "run"))
    running.until("checkpoint of round")
    running.until_update(chance.randrange(40, 120))
    family, victim = running.family(), chance.choice(running.stages())
    victim.kill()
    killed_s = time.monotonic()
    assert running.end() == 1
    assert time.monotonic() - killed_s < NOTICED_S
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
    planned(running.folder, **{**LONG, "stop": {"minutes": 0.02}})
    resumed = ravnest(running.folder, "run", "--out", "r", "--resume", "--json")
    assert resumed.returncode == 0, resumed.stderr
    assert json.loads(resumed.stdout)["samples"] > saved["samples"]


def test_an_interrupt_writes_a_checkpoint_and_stops(
    long_run_of_two: Path, tmp_path: Path, chance: random.Random
) -> None:
    def interrupted(which: signal.Signals, update: int) -> None:
        running = Running(shutil.copytree(long_run_of_two, tmp_path / which.name))
        running.until_update(update)
        family = running.family()
        running.send(which)
        assert running.end() == 130, running.output
        assert (running.folder / "r/weights.safetensors").is_file()
        assert json.loads((running.folder / "r/summary.json").read_text())["stopped_early"] is True
        assert gone(family)

    signals = [signal.SIGINT, signal.SIGTERM]
    with ThreadPoolExecutor(len(signals)) as together:
        list(together.map(interrupted, signals, [chance.randrange(5, 60) for _ in signals]))


def test_an_interrupt_before_training_ends_at_once(long_run_of_two: Path, tmp_path: Path) -> None:
    def interrupted(which: signal.Signals, phase: str) -> None:
        running = Running(shutil.copytree(long_run_of_two, tmp_path / f"{which.name} {phase}"))
        running.until(phase)
        family = running.family()
        running.send(which)
        assert running.end() == 130, running.output
        assert "Traceback" not in running.output
        assert not (running.folder / "r/weights.safetensors").exists()
        assert gone(family)

    cases = [(signal.SIGINT, "placing stages"), (signal.SIGTERM, "placing stages"), (signal.SIGTERM, "preparing")]
    with ThreadPoolExecutor(len(cases)) as together:
        list(together.map(interrupted, *zip(*cases, strict=True)))


def test_a_killed_driver_takes_its_stages_along(long_run_of_two: Path, tmp_path: Path, chance: random.Random) -> None:
    running = Running(shutil.copytree(long_run_of_two, tmp_path / "run"))
    running.until_update(chance.randrange(5, 60))
    stages = running.stages()
    assert len(stages) == 2
    running.process.kill()
    running.process.communicate(timeout=DEADLINE_S)
    assert gone(stages, within_s=NOTICED_S)


def test_a_frozen_stage_ends_the_run_by_name(frozen: tuple[Running, list[psutil.Process]]) -> None:
    running, family = frozen
    assert running.end() == 1
    last = running.output.strip().splitlines()[-1]
    assert "on node '" in last
    assert "has been silent for" in last
    assert gone(family)
