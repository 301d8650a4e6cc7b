"""`ravnest run --encrypt`: it trains as ever, and every port of its transport asks for a key."""

import contextlib
import json
import shutil
import socket
from collections import Counter
from pathlib import Path

import psutil
import pytest

from tests.support.commands import Running, planned

pytestmark = pytest.mark.timeout(600)

GREETING = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00"  # up to the version: what follows would end the connection
MECHANISM = slice(12, 32)


def mechanism(port: int) -> str | None:
    """How a ZeroMQ socket at `port` wants to be greeted; None when there is none."""
    answer = b""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=2) as connection:
        connection.sendall(GREETING)
        while len(answer) < MECHANISM.stop and (data := connection.recv(64)):
            answer += data
    is_zmq = len(answer) >= MECHANISM.stop and answer[:1] == b"\xff" and answer[9:10] == b"\x7f"
    return answer[MECHANISM].rstrip(b"\0").decode() if is_zmq else None


def listening(process: psutil.Process) -> list[int]:
    return [one.laddr.port for one in process.net_connections("tcp") if one.status == psutil.CONN_LISTEN]


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
