"""The `ravnest` command for tests: within the test's process, and as a user starts it, in a process of its own.

`ravnest` and `planned` run a command in the test's own process, since importing torch takes a process several seconds.
`ravnest_process` and `Running` start a process, for tests of the program itself, of its output and of signals.
"""

import contextlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import psutil
import pytest
import torch
import yaml

from ravnest.cli.main import main
from ravnest.driver.ray import guard
from ravnest.driver.ray.stage_host import PROGRAM

ROOT = Path(__file__).parents[2]
JOBS = Path(__file__).parent / "jobs"
RAVNEST = [sys.executable, "-m", "ravnest"]
DEADLINE_S = 240
GONE_S = 20.0
LONG: dict[str, object] = {
    "stop": {"samples": 500_000},
    "optimizer": {"name": "adamw", "lr": 1e-3},
    "data": {"factory": "tiny:words", "args": {"read_s": 0.005}},
}
"""Changes to the tiny job for a run that a test ends. It is paced by its data, and leaves the processor to others."""


def environment() -> dict[str, str]:
    """A command's environment: the packages are those of this working tree, wherever the command runs."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONUNBUFFERED": "1", "COLUMNS": "1000", "PYTHONPATH": path}


def ravnest(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run one command in this process, with `folder` as its working directory; return its exit code and its output.

    The command finds the environment, sys.path and the modules of a new process, and leaves them as they were. So the
    job's modules (`tiny`) are imported from `folder`, whatever folder another test has used.
    """
    out, err = io.StringIO(), io.StringIO()
    code: object = 0
    with (
        _as_in_a_new_process(folder),
        mock.patch.object(sys, "argv", ["ravnest", *arguments]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as end:
            code = end.code
    return subprocess.CompletedProcess(arguments, int(str(code or 0)), out.getvalue(), err.getvalue())


@contextlib.contextmanager
def _as_in_a_new_process(folder: Path) -> Iterator[None]:
    """Give a command the environment of `environment`, and no module of a job; restore both, and sys.path, after it."""
    names = {path.stem for path in JOBS.glob("*.py")} - {"__init__"}
    path = list(sys.path)
    imported = {name: sys.modules.pop(name) for name in names & sys.modules.keys()}
    threads = torch.get_num_threads()
    with mock.patch.dict(os.environ, environment()), contextlib.chdir(folder):
        # Other tests of this process may have imported jobs from their folders, which stay on the path.
        sys.path[:] = [each for each in path if not any((Path(each) / f"{name}.py").exists() for name in names)]
        try:
            yield
        finally:
            torch.set_num_threads(threads)
            sys.path[:] = path
            for name in names & sys.modules.keys():
                del sys.modules[name]
            sys.modules.update(imported)


def ravnest_process(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run one command in a process of its own, as `python -m ravnest`."""
    return subprocess.run(
        [*RAVNEST, *arguments], cwd=folder, env=environment(), capture_output=True, text=True, timeout=DEADLINE_S
    )


def planned(folder: Path, nodes: Collection[str] = (), check: str = "none", **changes: object) -> Path:
    """A folder with the tiny job, changed, and its plan of pipelines: for all machines of nodes.yaml, or for these.

    `check`: how much of the model is tried with values. It takes longer than all else, and changes nothing of the plan.
    """
    shutil.copytree(JOBS, folder, dirs_exist_ok=True)
    if nodes:
        with_machines(folder, nodes)
    job_path = folder / "job.yaml"
    job_path.write_text(yaml.safe_dump({**yaml.safe_load(job_path.read_text()), **changes}))
    made = ravnest(folder, "plan", "nodes.yaml", "--min-stages", "2", "--check", check)
    assert made.returncode == 0, made.stderr
    return folder


def with_machines(folder: Path, names: Collection[str]) -> Path:
    """Write a nodes.yaml into the folder that has these of the machines of `JOBS` alone."""
    fleet = yaml.safe_load((JOBS / "nodes.yaml").read_text())
    fleet["nodes"] = [node for node in fleet["nodes"] if node["name"] in names]
    (folder / "nodes.yaml").write_text(yaml.safe_dump(fleet))
    return folder


def until_update(run: Path, update: int, process: subprocess.Popen[Any]) -> bool:
    """Wait until some stage of the run has written down this update, or a later one; False where none ever does."""
    deadline_s = time.monotonic() + DEADLINE_S
    metrics = run / "metrics.jsonl"
    while process.poll() is None and time.monotonic() < deadline_s:
        lines = metrics.read_text().splitlines()[:-1] if metrics.exists() else []
        records = [json.loads(line) for line in lines[-50:]]
        if any(record["kind"] == "update" and record["update"] >= update for record in records):
            return True
        time.sleep(0.05)
    return False


class Running:
    """A run, or another `command` that trains, in the background, its output read line by line."""

    def __init__(self, folder: Path, *arguments: str, command: str = "run") -> None:
        self.folder = folder
        self.process = subprocess.Popen(
            [*RAVNEST, command, "--out", "r", *arguments],
            cwd=folder,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.output = ""

    def until(self, text: str) -> None:
        """Read on until a line holds `text`."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.output += line
            if text in line:
                return
        pytest.fail(f"ended before {text!r}:\n{self.output}")

    def until_update(self, update: int) -> None:
        """Wait until some stage has written down this update, or a later one."""
        if not until_update(self.folder / "r", update, self.process):
            pytest.fail(f"never came to update {update}:\n{self.output}")

    def send(self, which: signal.Signals) -> None:
        """Send it as it comes in life: Ctrl-C goes to all processes of a terminal, a termination to one."""
        if which == signal.SIGINT:
            os.killpg(self.process.pid, which)
        else:
            self.process.send_signal(which)

    def family(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def stages(self) -> list[psutil.Process]:
        """The stages' processes."""
        return [child for child in self.family() if words_of(child)[1:3] == ["-m", PROGRAM]]

    def end(self) -> int:
        """Wait for the end; the exit code."""
        rest, _ = self.process.communicate(timeout=DEADLINE_S)
        self.output += rest
        return self.process.returncode


@contextlib.contextmanager
def nothing_left_in(folder: Path) -> Iterator[Path]:
    """Whatever happens inside, leave no process that works in the folder or below: no driver, no stage and no Ray."""
    try:
        yield folder
    finally:
        deadline_s = time.monotonic() + GONE_S
        while (left := _working_in(folder)) and time.monotonic() < deadline_s:
            clearing = [each for each in left if guard.__file__ in words_of(each)]
            for process in left:
                if process not in clearing:  # a guard clears up after its Ray as soon as the driver is gone
                    with contextlib.suppress(psutil.NoSuchProcess):
                        process.kill()
            psutil.wait_procs(left, timeout=0.2)
        for process in _working_in(folder):  # a guard that does not end
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


def _working_in(folder: Path) -> list[psutil.Process]:
    """The processes in the folder or below, but for this one."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):  # it has ended, or is another user's
            if process.pid != os.getpid() and Path(process.cwd()).is_relative_to(folder):
                found.append(process)
    return found


def words_of(process: psutil.Process) -> list[str]:
    """The words of its command; none where it has just ended, as processes of Ray and of a killed stage do."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.cmdline()
    return []


def gone(processes: list[psutil.Process], within_s: float = GONE_S) -> bool:
    _, alive = psutil.wait_procs(processes, timeout=within_s)
    return not [one for one in alive if one.status() != psutil.STATUS_ZOMBIE]
