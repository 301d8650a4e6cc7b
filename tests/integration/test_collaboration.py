"""A backbone and volunteers, each a process of its own, over encrypted lines of this machine."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ravnest.collaboration.invitation import BACKBONE, read_invitation
from ravnest.collaboration.messages import (
    COLLABORATION,
    PROTOCOL,
    ChallengeMessage,
    HelloMessage,
    JoinMessage,
    PieceMessage,
    ProgressMessage,
    RefusedMessage,
    TensorMessage,
    TransferMessage,
    WelcomeMessage,
    signed_part,
)
from ravnest.dht import new_identity
from ring_allreduce.transport import LineClosed, LineEvent, Lines, LineSaid, Message

DEADLINE_S = 100.0

CODE = '''
import time

import torch


class Rows(torch.utils.data.Dataset):
    """Rows that take a while to read, so that a step is longer than what a process does not notice."""

    def __init__(self, size: int) -> None:
        self.inputs = torch.randn(size, 6, generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int):
        time.sleep(0.003)
        return self.inputs[index], (self.inputs[index, 0] > 0).long()


class Data:
    def __init__(self) -> None:
        self.train, self.held_out = Rows(512), Rows(16)


def model() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))
'''

JOB = """
mode: collaborative
target_batch: 64
model: {factory: rows:model}
data: {factory: rows:Data}
micro_batch: 8
optimizer: {name: lamb, lr: 1.0e-2}
averaging: {wire: int8}
stop: {samples: 6400}
evaluate_every: 3200
"""


def command(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "HOME": str(folder), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "ravnest", "collaborate", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
    )


def until(holds: Callable[[], bool], what: str, deadline_s: float = DEADLINE_S) -> None:
    ends_s = time.monotonic() + deadline_s
    while not holds():
        assert time.monotonic() < ends_s, f"not within {deadline_s} s: {what}"
        time.sleep(0.05)


def curve(out: Path) -> list[dict[str, float]]:
    path = out / "curve.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [entry for entry in map(json.loads, lines) if "samples" in entry]


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[str]]]:
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.communicate()


def test_volunteers_join_late_and_are_killed_and_a_liar_is_put_out_and_the_backbone_is_resumed(
    tmp_path: Path, started: list[subprocess.Popen[str]]
) -> None:
    job = tmp_path / "job"
    out = job / "out"  # what it keeps there is not sent to volunteers when it is resumed
    job.mkdir()
    (job / "rows.py").write_text(CODE)
    (job / "job.yaml").write_text(JOB)

    def volunteer(name: str) -> subprocess.Popen[str]:
        key = ("--key-file", str(tmp_path / f"{name}.key"))
        given = (str(out / "invitation.txt"), "--name", name, "--yes", "--threads", "1", *key)
        started.append(command(tmp_path, "join", *given))
        return started[-1]

    def start(listen: str, *more: str) -> subprocess.Popen[str]:
        given = (str(job / "job.yaml"), "--listen", listen, "--out", str(out))
        started.append(command(tmp_path, "start", *given, *more))
        return started[-1]

    backbone = start("127.0.0.1:0")
    until((out / "invitation.txt").exists, "the backbone listens")
    invitation = read_invitation((out / "invitation.txt").read_text())
    # Whoever has no invitation gets no word in, and stops nobody.
    with socket.create_connection(invitation.endpoints()[0]) as stranger:
        stranger.sendall(os.urandom(4096))
    steady, killed = volunteer("steady"), volunteer("killed")
    until(lambda: any(entry["peers"] == 2 for entry in curve(out)), "both take part")
    backbone.send_signal(signal.SIGINT)
    assert backbone.wait(DEADLINE_S) == 130
    made = len(curve(out))
    backbone = start(invitation.addresses[0], "--resume")
    until(lambda: any(entry["peers"] == 2 for entry in curve(out)[made:]), "both have come back")
    assert read_invitation((out / "invitation.txt").read_text()) == invitation
    killed.send_signal(signal.SIGKILL)
    late = volunteer("late")
    assert "put out" in said_to_liar(out, tmp_path)
    assert backbone.wait(DEADLINE_S) == 0
    said = {process: process.communicate(timeout=30)[0] for process in (backbone, steady, late)}
    assert steady.returncode == late.returncode == 0
    # Everyone holds the same bytes at the end, who came late too.
    hashes = {re.findall(r"hash ([0-9a-f]{16})", text)[-1] for text in said.values()}
    assert len(hashes) == 1
    steps = curve(out)
    assert [entry["step"] for entry in steps] == list(range(1, 101))
    assert all(entry["samples"] >= 64 for entry in steps)
    assert steps[-1]["loss"] < 0.7 * steps[0]["loss"]
    people = {entry["name"]: entry for entry in json.loads((out / "people.json").read_text())}
    assert set(people) == {"steady", "killed", "late", "liar"}
    assert people["liar"]["samples"] == 0
    assert people["liar"]["refused"] == 3
    assert people["late"]["samples"] > 0
    assert sum(entry["samples"] for entry in people.values()) == sum(entry["samples"] for entry in steps)


def said_to_liar(out: Path, home: Path) -> str:
    """Joins as a volunteer that sends NaN, again and again; returns how that ends."""
    invitation = read_invitation((out / "invitation.txt").read_text())
    (host, port), identity = invitation.endpoints()[0], new_identity()
    lines = Lines(COLLABORATION, bytes.fromhex(invitation.token))
    try:
        line = lines.dial(host, port, invitation.keys(), BACKBONE, 10.0)
        heard: list[Message] = []
        closed = False
        waiting: list[LineEvent] = []

        def next_of(kind: type[Message]) -> Message:
            ends_s = time.monotonic() + 30.0
            while time.monotonic() < ends_s:
                waiting.extend(lines.take(0.1))
                while waiting:
                    event = waiting.pop(0)
                    if isinstance(event, LineSaid) and isinstance(event.message, kind):
                        return event.message
            raise AssertionError(f"no {kind.__name__} came")

        challenge = next_of(ChallengeMessage)
        assert isinstance(challenge, ChallengeMessage)
        signature = identity.sign(signed_part(challenge.nonce, invitation.backbone_public, "liar"))
        hello = HelloMessage(protocol=PROTOCOL, name="liar", public_key=identity.public_key, signature=signature)
        lines.send(line, hello)
        next_of(WelcomeMessage)
        lines.send(line, JoinMessage(form="gradients:146:int8 statistics:0:exact", order=""))
        transfer = next_of(TransferMessage)
        assert isinstance(transfer, TransferMessage)
        progress = ProgressMessage(
            step=transfer.step, samples=8, samples_per_s=1.0, micro_batch=8, every_s=1.0, loss=None, loss_samples=0
        )
        lines.send(line, progress)
        import torch

        for _ in range(3):
            lines.send(line, TransferMessage(what="contribution", step=transfer.step, tensors=2, samples=8))
            lines.send(line, TensorMessage(name="gradients", dtype="float32", elements=146))
            values, scales = torch.ones(146, dtype=torch.int8), torch.tensor([float("nan")])
            lines.send(line, PieceMessage(start=0, stop=146), (values, scales))
        ends_s = time.monotonic() + 30.0
        while not closed and time.monotonic() < ends_s:
            for event in [*waiting, *lines.take(0.1)]:
                closed = closed or isinstance(event, LineClosed)
                if isinstance(event, LineSaid) and isinstance(event.message, RefusedMessage):
                    heard.append(event.message)
            waiting.clear()
        return "put out: " + "; ".join(str(message) for message in heard) if closed and heard else "nothing"
    finally:
        lines.close()
