"""`ravnest` as a user starts it: a process of its own, Ray, files, signals."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import yaml

JOBS = Path(__file__).parent / "jobs"
RAVNEST = [sys.executable, "-m", "ravnest"]
DEADLINE_S = 240


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONUNBUFFERED": "1", "COLUMNS": "200"}


def ravnest(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*RAVNEST, *arguments], cwd=folder, env=environment(), capture_output=True, text=True, timeout=DEADLINE_S
    )


def planned(folder: Path, **changes: object) -> Path:
    """A folder with the tiny job, changed, and its plan."""
    shutil.copytree(JOBS, folder, dirs_exist_ok=True)
    job_path = folder / "job.yaml"
    job_path.write_text(yaml.safe_dump({**yaml.safe_load(job_path.read_text()), **changes}))
    made = ravnest(folder, "plan", "nodes.yaml")
    assert made.returncode == 0, made.stderr
    return folder


class Running:
    """A run in the background, its output read line by line."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder = folder
        self.process = subprocess.Popen(
            [*RAVNEST, "run", "--out", "r", *arguments],
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
        deadline_s = time.monotonic() + DEADLINE_S
        metrics = self.folder / "r/metrics.jsonl"
        while self.process.poll() is None and time.monotonic() < deadline_s:
            lines = metrics.read_text().splitlines()[:-1] if metrics.exists() else []
            records = [json.loads(line) for line in lines[-50:]]
            if any(record["kind"] == "update" and record["update"] >= update for record in records):
                return
            time.sleep(0.05)
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
        """The stages' processes, as Ray names them."""
        return [child for child in self.family() if "StageActor" in " ".join(child.cmdline())]

    def end(self) -> int:
        """Wait for the end; the exit code."""
        rest, _ = self.process.communicate(timeout=DEADLINE_S)
        self.output += rest
        return self.process.returncode


def gone(processes: list[psutil.Process], within_s: float = 20.0) -> bool:
    _, alive = psutil.wait_procs(processes, timeout=within_s)
    return not [one for one in alive if one.status() != psutil.STATUS_ZOMBIE]
