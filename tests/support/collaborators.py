"""Backbone machines and volunteers of one collaboration, each a process on this machine."""

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

DEADLINE_S = 100.0

ROWS = """
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


def model(width: int) -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(6, width), torch.nn.Tanh(), torch.nn.Linear(width, 2))
"""
"""The module rows.py of each job: rows that take a while to read, and a model as large as is asked."""


BEHIND_A_FILTER = """
import sys

from ravnest.cli.main import main
from ring_allreduce.errors import DeadlinePassed
from ring_allreduce.transport import lines

closed, stream = int(sys.argv.pop(1)), lines.EncryptedStream


def filtered(host, port, keys, peer, timeout_s):
    if port == closed:
        raise DeadlinePassed(f"a handshake with {host}:{port}", timeout_s)
    return stream(host, port, keys, peer, timeout_s)


lines.EncryptedStream = filtered
main()
"""
"""The command line on a machine that reaches no port of that number."""


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def until(holds: Callable[[], bool], what: str) -> None:
    """Wait for it, at most DEADLINE_S."""
    ends_s = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < ends_s, f"not within {DEADLINE_S} s: {what}"
        time.sleep(0.05)


class Collaborators:
    """All processes, by name, and the folder with their files."""

    def __init__(self, folder: Path, job: str) -> None:
        """`job`: the text of job.yaml, whose model and data are those of ROWS."""
        self.folder, self.job = folder, folder / "job" / "job.yaml"
        self.job.parent.mkdir()
        self.job.with_name("rows.py").write_text(ROWS)
        self.job.write_text(job)
        self.one, self.two = (f"127.0.0.1:{free_port()}" for _ in range(2))
        self.started: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *arguments: str, closed: str = "") -> None:
        """Start `ravnest collaborate` with these arguments. `closed`: HOST:PORT that it does not reach."""
        command = ["-m", "ravnest"]
        if closed:
            filtered = self.folder / "filtered.py"
            filtered.write_text(BEHIND_A_FILTER)
            command = [str(filtered), closed.rpartition(":")[2]]
        environment = {**os.environ, "HOME": str(self.folder), "OMP_NUM_THREADS": "1"}
        with (self.folder / f"{name}.log").open("wb") as log:
            self.started[name] = subprocess.Popen(
                [sys.executable, *command, "collaborate", *arguments], stdout=log, stderr=log, env=environment
            )

    def said(self, name: str) -> str:
        """All that a process has printed."""
        return (self.folder / f"{name}.log").read_text()

    def backbones(self, *more: str) -> None:
        """Start the first machine, and the second one, which stands by. `more`: arguments of both."""
        self._backbone("first", self.one, self.two, *more)
        until((self.folder / "first" / "invitation.txt").exists, "the backbone listens")
        (self.folder / "second").mkdir()
        (self.folder / "second" / "keys.json").write_bytes((self.folder / "first" / "keys.json").read_bytes())
        self._backbone("second", self.two, self.one, "--resume", *more)
        until(lambda: "stands by with the state" in self.said("second"), "the second machine stands by")

    def join(self, name: str, *, closed: str = "") -> None:
        """Start a volunteer. `closed`: HOST:PORT that it does not reach."""
        key, invitation = str(self.folder / f"{name}.key"), str(self.folder / "first" / "invitation.txt")
        self.start(
            name, "join", invitation, "--name", name, "--yes", "--threads", "1", "--key-file", key, closed=closed
        )

    def hashes(self, *names: str) -> set[str]:
        """Wait for the end of these, and return the hashes of the weights that they print."""
        for name in names:
            assert self.started[name].wait(DEADLINE_S) == 0, self.said(name)
        return {re.findall(r"hash ([0-9a-f]{16})", self.said(name))[-1] for name in names}

    def end(self) -> None:
        """Kill who still runs."""
        for process in self.started.values():
            if process.poll() is None:
                process.kill()
            process.wait()

    def _backbone(self, name: str, at: str, other: str, *more: str) -> None:
        given = ("--listen", at, "--address", at, "--other", other, "--out", str(self.folder / name))
        self.start(name, "start", str(self.job), *given, *more)
