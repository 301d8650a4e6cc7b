"""What becomes of a run whose processes are killed, frozen or interrupted. Faults come at a step, chosen by a seed:
RAVNEST_FAULT_SEED tries others.

Most of a run's time is the start of Ray and of the stages' processes. So few runs serve many tests: most have two
processes only, the frozen run waits for its end and the paused one for longer than any deadline while other tests run,
and runs that are interrupted before training start together.
"""

import json
import os
import random
import shutil
import signal
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from ravnest.driver.observe.metrics_file import read_metrics
from ravnest.driver.ray.stage_host import PROGRAM
from ring_allreduce.rounds import SILENCE_FLOOR_S
from tests.support.commands import (
    DEADLINE_S,
    LONG,
    Running,
    gone,
    nothing_left_in,
    planned,
    ravnest,
    ravnest_process,
    until_update,
    words_of,
)
from tests.support.terminal import CTRL_Z, Terminal

SEED = int(os.environ.get("RAVNEST_FAULT_SEED", "0"))
AT_ONCE_S = 5.0
"""The death of a process is noticed within this time, which is less than any silence that costs a stage."""
NOTICED_S = 60.0
"""A loss is noticed long before: this only tells a driver that notices from one that does not."""

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def long_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a plan for a run of four processes that nobody waits for."""
    return planned(tmp_path_factory.mktemp("long"), **LONG, wait_for_driver_minutes=1.0)


@pytest.fixture(scope="module")
def long_run_of_two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same on two machines: a cluster of two stages."""
    return planned(tmp_path_factory.mktemp("two"), nodes=("a0", "b0"), **LONG, wait_for_driver_minutes=1.0)


@pytest.fixture
def chance() -> random.Random:
    return random.Random(SEED)


@pytest.fixture(scope="module", autouse=True)
def frozen(
    long_run: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Running, list[psutil.Process], Future[int]]]:
    """A run of which one stage is frozen, all its processes, and its exit code: it is interrupted as soon as it goes on
    without the frozen stage's cluster. That takes its time while other tests run."""
    chance = random.Random(SEED)
    with nothing_left_in(shutil.copytree(long_run, tmp_path_factory.mktemp("frozen") / "run")) as folder:
        running = Running(folder)
        running.until_update(chance.randrange(5, 60))
        family = running.family()
        chance.choice(running.stages()).suspend()

        def ended() -> int:
            running.until("has left the run")
            running.send(signal.SIGINT)
            return running.end()

        watcher = ThreadPoolExecutor(1)
        yield running, family, watcher.submit(ended)
        if running.process.poll() is None:
            running.process.kill()
        watcher.shutdown()


def trains(process: psutil.Process) -> bool:
    """Whether it is a run's driver or one of its stages, and none of Ray's own processes."""
    words = words_of(process)
    return words[1:4] == ["-m", "ravnest", "run"] or words[1:3] == ["-m", PROGRAM]


@pytest.fixture(scope="module", autouse=True)
def paused(long_run_of_two: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Terminal, float]]:
    """A run in a terminal, paused by Ctrl-Z, and when it was. The pause lasts while other tests run."""
    with nothing_left_in(shutil.copytree(long_run_of_two, tmp_path_factory.mktemp("paused") / "run")) as folder:
        terminal = Terminal(folder)
        terminal.ravnest("run", "--out", "r")
        assert until_update(folder / "r", 5, terminal.shell), terminal.output
        family = terminal.family()
        terminal.type(CTRL_Z)
        training = [each for each in family if trains(each)]
        assert len(training) == 3
        deadline_s = time.monotonic() + NOTICED_S
        while any(each.status() != psutil.STATUS_STOPPED for each in training):
            assert time.monotonic() < deadline_s, terminal.output
            time.sleep(0.05)
        yield terminal, time.monotonic()
        terminal.close()
        psutil.wait_procs(family, timeout=20.0)


FROZEN_S = 2.0 * SILENCE_FLOOR_S
"""Longer than any deadline of a run that is this regular."""
FULL_AT_BYTES = 4096
"""No file of a checkpoint is so small."""


@dataclass
class Mishaps:
    """A run that has gone through several mishaps, and what it had written down before it lost its folder."""

    running: Running
    told: list[dict[str, object]]
    family: list[psutil.Process]


@pytest.fixture(scope="module", autouse=True)
def mishaps(long_run_of_two: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Future[Mishaps]]:
    """A run whose processes stand still three times for FROZEN_S: all of them, as when a laptop is closed, then its
    stages alone, then its driver alone. Each time it trains on before the next. Then its driver may write no more than
    a full disk lets it, and may again; and its folder is removed before it is told to end. That takes its time while
    other tests run."""
    with nothing_left_in(shutil.copytree(long_run_of_two, tmp_path_factory.mktemp("mishaps") / "run")) as folder:
        running = Running(folder)
        running.until_update(5)
        stages, driver = running.stages(), psutil.Process(running.process.pid)
        run = running.folder / "r"

        def trains_on() -> None:
            last = max(int(str(one["update"])) for one in read_metrics(run / "metrics.jsonl") if "update" in one)
            running.until_update(last + 100)  # so many updates of a stage take rounds of all of them

        def happen() -> Mishaps:
            for frozen in ([driver, *running.family()], stages, [driver]):
                for each in frozen:
                    each.suspend()
                time.sleep(FROZEN_S)
                for each in frozen:
                    each.resume()
                trains_on()
            _, most = driver.rlimit(psutil.RLIMIT_FSIZE)
            driver.rlimit(psutil.RLIMIT_FSIZE, (FULL_AT_BYTES, most))
            running.until("there is no checkpoint of round")
            driver.rlimit(psutil.RLIMIT_FSIZE, (most, most))
            running.until("checkpoint of round")
            trains_on()
            told, family = read_metrics(run / "metrics.jsonl"), running.family()
            shutil.rmtree(run.rename(run.with_name("removed")))  # the driver may write a file there meanwhile
            time.sleep(2.0)  # rounds and signs of life go on without it
            running.send(signal.SIGTERM)
            return Mishaps(running, told, family)

        watcher = ThreadPoolExecutor(1)
        yield watcher.submit(happen)
        if running.process.poll() is None:
            running.process.kill()
        watcher.shutdown()


def test_a_folder_that_a_run_has_is_refused_to_a_second_one(paused: tuple[Terminal, float]) -> None:
    terminal, _ = paused
    owner = next(each.pid for each in terminal.family() if words_of(each)[1:4] == ["-m", "ravnest", "run"])
    before = sorted(path.name for path in (terminal.folder / "r").rglob("*"))
    for arguments in (["run", "--out", "r"], ["run", "--out", "r", "--resume"], ["rehearse", "--out", "r"]):
        refused = ravnest(terminal.folder, *arguments)
        assert refused.returncode == 2
        assert f"r: is in use by process {owner} on" in refused.stderr
    assert sorted(path.name for path in (terminal.folder / "r").rglob("*")) == before


@pytest.fixture(scope="module", autouse=True)
def unheard(long_run_of_two: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[psutil.Process]]:
    """The stages of a run whose driver is frozen: they hear of nobody, and their Ray is well. They end while other
    tests run."""
    with nothing_left_in(shutil.copytree(long_run_of_two, tmp_path_factory.mktemp("unheard") / "run")) as folder:
        running = Running(folder)
        running.until_update(5)
        stages, family = running.stages(), running.family()
        running.process.send_signal(signal.SIGSTOP)
        yield stages
        running.process.kill()
        running.end()
        assert gone(family)


def test_a_killed_cluster_is_replaced_a_run_without_any_begins_again_and_one_leaves_with_notice(
    long_run: Path, tmp_path: Path, chance: random.Random
) -> None:
    running = Running(shutil.copytree(long_run, tmp_path / "run"))
    running.until("checkpoint of round")
    running.until_update(chance.randrange(40, 120))
    stages = running.stages()
    assert len(stages) == 4
    chance.choice(stages).kill()
    killed_s = time.monotonic()
    running.until("has left the run")
    assert time.monotonic() - killed_s < NOTICED_S
    (lost,) = [one for one in read_metrics(running.folder / "r/metrics.jsonl") if one["kind"] == "lost"]
    assert lost["silent_s"] < AT_ONCE_S, lost
    running.until("trains again")
    running.until("checkpoint of round")  # one that was begun without that cluster may be written only now
    running.until("checkpoint of round")
    left = [stage for stage in stages if not gone([stage], within_s=0.0)]
    assert len(left) == 3, "those of the other cluster go on, the lost one's neighbour stood by, and one is new"
    family, stages = running.family(), running.stages()
    assert len(stages) == 4
    for stage in stages:
        stage.kill()
    running.until("begins again from")
    latest = running.folder / "r/checkpoints" / (running.folder / "r/checkpoints/latest").read_text().strip()
    told = running.output.strip().splitlines()[-1]
    assert told.startswith("stage c")
    assert "on node '" in told
    assert "died" in told
    assert f"begins again from {latest.name} in 2 s" in told
    saved = json.loads((latest / "manifest.json").read_text())
    assert saved["samples"] == 12 * sum(saved["versions"].values())
    assert saved["lost"] == []
    assert gone(family)
    running.until("checkpoint of round")
    asked = ravnest(running.folder, "leave", "r", "b0")
    assert asked.returncode == 0, asked.stderr
    running.until("has left the run with nothing lost")
    running.until("is started with other cuts: node 'b0' of")
    family = running.family()
    running.send(signal.SIGTERM)
    assert running.end() == 130
    assert "Traceback" not in running.output
    assert gone(family)
    assert json.loads((running.folder / "r/summary.json").read_text())["samples"] > saved["samples"]


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

    cases = [(signal.SIGINT, "placing stages"), (signal.SIGTERM, "preparing")]
    with ThreadPoolExecutor(len(cases)) as together:
        list(together.map(interrupted, *zip(*cases, strict=True)))


def test_a_run_left_to_itself_does_what_it_is_asked_and_is_taken_over_when_its_driver_is_killed(
    long_run_of_two: Path, tmp_path: Path, chance: random.Random
) -> None:
    folder = shutil.copytree(long_run_of_two, tmp_path / "run")
    wait = ("--wait", str(DEADLINE_S // 2), "--json")

    def asked(*arguments: str) -> str:
        """What a command answers that is given in another terminal."""
        done = ravnest_process(folder, *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert "ravnest stop r" in asked("run", "--detach", "--out", "r")
    driver = psutil.Process(json.loads((folder / "r/.lock").read_text())["pid"])
    assert json.loads(asked("checkpoint", "r", *wait))["answer"]["round"] > 0
    assert json.loads(asked("evaluate", "r", "--live", *wait))["answer"]["loss"] > 0
    family = driver.children(recursive=True)
    own = [each for each in family if PROGRAM in words_of(each)]
    stages = [each for each in own if words_of(each)[1:3] == ["-m", PROGRAM]]
    assert len(stages) == 2
    before = Path(folder / "r/driver.json").stat()
    assert before.st_mode & 0o777 == 0o600
    driver.kill()
    assert gone([each for each in family if each not in own], within_s=NOTICED_S)
    again = Running(folder, "--resume")
    again.until("taken over after round")
    again.until("checkpoint of round")
    assert all(stage.is_running() for stage in stages), "nothing was started anew"
    taken = read_metrics(folder / "r/metrics.jsonl")
    told = [(one["cluster"], one["stage"], one["update"]) for one in taken if one["kind"] == "update"]
    assert len(told) == len(set(told)), "no update was made twice"
    chance.choice(stages).kill()  # which nobody's actor watches any more, in the only cluster
    again.until("begins again from")
    again.until("checkpoint of round")
    assert json.loads(asked("stop", "r", *wait))["state"] == "stopped"
    assert again.end() == 130, again.output
    assert "stopping with a checkpoint" in again.output
    assert "Traceback" not in again.output
    assert gone(stages)
    assert not (folder / "r/driver.json").exists()


def test_a_frozen_stage_costs_its_cluster(frozen: tuple[Running, list[psutil.Process], Future[int]]) -> None:
    running, family, exit_code = frozen
    assert exit_code.result(timeout=DEADLINE_S) == 130, running.output
    told = next(line for line in running.output.splitlines() if "has left the run" in line)
    assert "on node '" in told
    assert "has been silent for" in told
    assert (running.folder / "r/weights.safetensors").is_file()
    assert json.loads((running.folder / "r/summary.json").read_text())["stopped_early"] is True
    assert gone(family)


def test_a_pause_of_everything_is_nobodys_death_and_a_closed_terminal_leaves_a_checkpoint(
    paused: tuple[Terminal, float],
) -> None:
    terminal, since_s = paused
    family, run = terminal.family(), terminal.folder / "r"
    training = [each for each in family if trains(each)]  # Ray ends idle workers of its own as it likes
    updates = read_metrics(run / "metrics.jsonl")
    time.sleep(max(0.0, since_s + 1.2 * SILENCE_FLOOR_S - time.monotonic()))
    assert read_metrics(run / "metrics.jsonl") == updates
    last = max(record["update"] for record in updates if record["kind"] == "update")
    terminal.type("fg\n")
    # So many updates of a stage take rounds of all of them.
    assert until_update(run, last + 100, terminal.shell), terminal.output
    assert "stood still for" in terminal.output
    assert all(each.is_running() for each in training)
    terminal.close()
    assert gone(family, within_s=NOTICED_S)
    assert json.loads((run / "summary.json").read_text())["stopped_early"] is True
    assert (run / "weights.safetensors").is_file()
    assert not (run / ".lock").exists()


def test_who_stands_still_for_longer_than_any_deadline_together_is_not_called_dead(mishaps: Future[Mishaps]) -> None:
    happened = mishaps.result(timeout=3 * (FROZEN_S + DEADLINE_S))
    kinds = {str(one["kind"]) for one in happened.told}
    assert not kinds & {"lost", "restarted", "taken_over", "replaced"}, happened.running.output
    assert "suspected" in kinds, "of the stages that stood still alone"
    assert "stood still for" in happened.running.output
    updates = [(one["cluster"], one["stage"], one["update"]) for one in happened.told if one["kind"] == "update"]
    assert len(updates) == len(set(updates)), "no update was made twice"


def test_a_full_disk_costs_a_checkpoint_and_a_folder_that_is_gone_what_was_in_it(mishaps: Future[Mishaps]) -> None:
    happened = mishaps.result(timeout=3 * (FROZEN_S + DEADLINE_S))
    assert happened.running.end() == 130, happened.running.output
    assert "Traceback" not in happened.running.output
    assert (happened.running.folder / "r/weights.safetensors").is_file()
    assert gone(happened.family)


def test_stages_that_hear_no_driver_end_by_themselves(unheard: list[psutil.Process]) -> None:
    assert len(unheard) == 2
    assert gone(unheard, within_s=DEADLINE_S)
