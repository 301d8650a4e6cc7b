"""A Ray that ravnest starts on this machine: nobody else reaches its token, its folder or its ports, and nothing of it
stays behind."""

import ipaddress
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.support.commands import environment, gone

pytestmark = pytest.mark.timeout(300)

PROGRAM = """
import logging, os, sys
from pathlib import Path
from ravnest.driver.ray.session import RaySession

session = RaySession(None, log=Path("ray.log"))

class Actor:
    def speak(self):
        print("\\x1b[31mfrom a worker\\x1b[0m", flush=True)
        return os.getpid()

actor = session.ray.remote(Actor).options(num_cpus=0).remote()
assert session.ray.get(actor.speak.remote()) != os.getpid()
logging.getLogger("ray").error("from Ray's Python code")
os.write(2, b"from Ray's C++ code\\n")
print("from ravnest", file=sys.stderr, flush=True)
print("ready", flush=True)
sys.stdin.readline()
session.close()
os.write(2, b"after Ray\\n")
"""


@dataclass
class Started:
    """A program with a Ray of its own: all processes, the ports they listen on, and the modes of what it wrote."""

    processes: list[psutil.Process]
    ports: dict[str, list[str]]
    folder: Path
    folder_mode: int
    token_mode: int


class Program:
    """The program above, in a process of its own with a new home."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.base = Path(tempfile.mkdtemp(prefix="t", dir="/tmp"))  # short, for the sockets
        self.home = folder / "home"
        self.home.mkdir(exist_ok=True)
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            cwd=folder,
            env={**environment(), "HOME": str(self.home), "RAY_TMPDIR": str(self.base)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            umask=0,
        )

    def started(self) -> Started:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n", self.process.communicate()[1]
        processes = psutil.Process(self.process.pid).children(recursive=True)
        ports: dict[str, list[str]] = {}
        for process in (psutil.Process(self.process.pid), *processes):
            listening = [one for one in process.net_connections("inet") if one.status == psutil.CONN_LISTEN]
            ports[" ".join(process.cmdline()) or process.name()] = [one.laddr.ip for one in listening]
        (folder,) = self.base.iterdir()
        return Started(
            processes,
            ports,
            folder,
            folder.stat().st_mode & 0o777,
            (self.home / ".ray/auth_token").stat().st_mode & 0o777,
        )

    def end(self) -> str:
        """End it as its user would; what it wrote to stderr."""
        out, err = self.process.communicate("\n", timeout=120)
        assert self.process.returncode == 0, out + err
        return err

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=60)

    def close(self) -> None:
        if self.process.poll() is None:
            self.kill()


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Program, Started, str]]:
    """One that has come to its end, what was seen of it while it ran, and its stderr."""
    made = Program(tmp_path_factory.mktemp("program"))
    try:
        started = made.started()
        yield made, started, made.end()
    finally:
        made.close()
        made.base.rmdir()


def loopback(host: str) -> bool:
    address = ipaddress.ip_address(host)
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def test_every_port_of_ray_is_on_loopback(program: tuple[Program, Started, str]) -> None:
    _, started, _ = program
    listening = {name: hosts for name, hosts in started.ports.items() if hosts}
    for part in ("gcs_server", "raylet", "RuntimeEnvAgent", "Actor"):
        assert any(part in name for name in listening), (part, started.ports)
    assert not [(name, host) for name, hosts in listening.items() for host in hosts if not loopback(host)]


def test_the_token_and_the_folder_are_the_users_alone(program: tuple[Program, Started, str]) -> None:
    _, started, _ = program
    assert (started.token_mode, started.folder_mode) == (0o600, 0o700)


def test_nothing_of_ray_stays_behind(program: tuple[Program, Started, str]) -> None:
    _, started, _ = program
    assert len(started.processes) > 5
    assert gone(started.processes, within_s=0.0)
    assert not started.folder.exists()


def test_the_user_hears_ravnest_and_the_log_has_what_ray_said(program: tuple[Program, Started, str]) -> None:
    made, _, said = program
    assert said.splitlines() == ["from ravnest", "after Ray"]
    log = (made.folder / "ray.log").read_text()
    for words in ("from a worker", "from Ray's Python code", "from Ray's C++ code"):
        assert words in log
    assert "\x1b" not in log


def test_a_killed_program_takes_its_ray_along(tmp_path: Path) -> None:
    killed = Program(tmp_path)
    try:
        left = killed.started()
        killed.kill()
        assert gone(left.processes, within_s=40.0), [one.name() for one in left.processes if one.is_running()]
        deadline_s = time.monotonic() + 40.0
        while left.folder.exists() and time.monotonic() < deadline_s:
            time.sleep(0.1)
        assert not left.folder.exists()
    finally:
        killed.close()
        killed.base.rmdir()
