"""Two backbone machines and three volunteers, each a process: the second one adds up a share, and is killed."""

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

DEADLINE_S = 100.0

CODE = """
import time

import torch


class Rows(torch.utils.data.Dataset):
    def __init__(self, size: int) -> None:
        self.inputs = torch.randn(size, 6, generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int):
        time.sleep(0.01)
        return self.inputs[index], (self.inputs[index, 0] > 0).long()


class Data:
    def __init__(self) -> None:
        self.train, self.held_out = Rows(512), Rows(8)


def model() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(6, 20_000), torch.nn.Tanh(), torch.nn.Linear(20_000, 2))
"""

JOB = """
mode: collaborative
target_batch: 96
model: {factory: wide:model}
data: {factory: wide:Data}
micro_batch: 8
optimizer: {name: adamw, lr: 1.0e-4}
averaging: {wire: float16}
stop: {samples: 2880}
evaluate_every: 2880
"""


@pytest.fixture
def started() -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    processes: dict[str, subprocess.Popen[bytes]] = {}
    yield processes
    for process in processes.values():
        if process.poll() is None:
            process.kill()
        process.wait()


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def until(holds: Callable[[], bool], what: str) -> None:
    ends_s = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < ends_s, f"not within {DEADLINE_S} s: {what}"
        time.sleep(0.05)


def test_a_machine_that_stands_by_adds_up_a_share_and_costs_no_step_when_it_is_killed(
    tmp_path: Path, started: dict[str, subprocess.Popen[bytes]]
) -> None:
    job = tmp_path / "job"
    job.mkdir()
    (job / "wide.py").write_text(CODE)
    (job / "job.yaml").write_text(JOB)
    one, two = (f"127.0.0.1:{free_port()}" for _ in range(2))

    def start(name: str, *arguments: str) -> None:
        environment = {**os.environ, "HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
        with (tmp_path / f"{name}.log").open("wb") as log:
            started[name] = subprocess.Popen(
                [sys.executable, "-m", "ravnest", "collaborate", *arguments], stdout=log, stderr=log, env=environment
            )

    def said(name: str) -> str:
        return (tmp_path / f"{name}.log").read_text()

    def backbone(name: str, at: str, other: str, *more: str) -> None:
        given = ("--listen", at, "--address", at, "--other", other, "--link-mbit", "100", "--out", str(tmp_path / name))
        start(name, "start", str(job / "job.yaml"), *given, *more)

    backbone("first", one, two)
    invitation = tmp_path / "first" / "invitation.txt"
    until(invitation.exists, "the backbone listens")
    (tmp_path / "second").mkdir()
    (tmp_path / "second" / "keys.json").write_bytes((tmp_path / "first" / "keys.json").read_bytes())
    backbone("second", two, one, "--resume")
    until(lambda: "stands by with the state" in said("second"), "the second machine stands by")
    names = ["ada", "eva", "lea"]
    for name in names:
        key = str(tmp_path / f"{name}.key")
        start(name, "join", str(invitation), "--name", name, "--yes", "--threads", "1", "--key-file", key)
    until(lambda: f"{two} may add up shares" in said("first"), "an epoch begins")
    until(lambda: "step 4:" in said("first"), "steps are made")
    started["second"].kill()
    until(lambda: f"{two} adds up no share" in said("first"), "the helper is missed")
    for name in ("first", *names):
        assert started[name].wait(DEADLINE_S) == 0, said(name)
    hashes = {re.findall(r"hash ([0-9a-f]{16})", said(name))[-1] for name in ("first", *names)}
    assert len(hashes) == 1
    assert all(said(name).count("trying again") == 0 for name in names)
