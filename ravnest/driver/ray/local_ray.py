"""What keeps a Ray to the user who starts it: its token, its folder, its ports, and the end of its processes.

Ray by itself writes its token (`~/.ray/auth_token`) and the folder of a session (sockets, logs, code) so that every
user of the machine can read them, listens on every interface, and leaves the folder behind. Here the token is readable
by its owner alone from its first byte on, the folder is private and removed at the end, and in a run of one machine
every port is on loopback. `RayFolder` and `on_loopback` are for a Ray that is started here, `keep_token` is for any.
"""

import ipaddress
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from ravnest.driver.ray import guard
from ravnest.driver.ray.stage_host import PROGRAM
from ravnest.errors import RunFailed

_TOKEN = Path(".ray") / "auth_token"
_TOKEN_BYTES = 32
_OWNER_ALONE = 0o077
_FOLDER_PREFIX = "ravnest-ray-"
_LONGEST_BASE = 24
"""A path of a Unix socket has at most 107 characters on Linux and 103 on macOS, of which Ray takes 65 in its folder."""
_WORKERS = ("ray::StageActor", "ray::IDLE")
"""How Ray's workers call themselves: those that start stages, and those that may become one. Its agents are none."""
_ONE_MACHINE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Ray's switch: with 0 a Ray that starts takes the address of loopback for this machine's. It works on Linux too."""


def keep_token(home: Path, environment: Mapping[str, str], *, create: bool) -> None:
    """Let nobody but its owner read Ray's token in `home`; with `create`, make one where there is none.

    A token that `environment` gives (RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH) is left to the user. Raises RunFailed where
    the token cannot be written.
    """
    if environment.get("RAY_AUTH_TOKEN") or environment.get("RAY_AUTH_TOKEN_PATH"):
        return
    path = home / _TOKEN
    try:
        if create and not path.exists():
            _write_token(path)
        if path.exists() and path.stat().st_uid == os.getuid() and path.stat().st_mode & _OWNER_ALONE:
            path.chmod(0o600)
    except OSError as error:
        raise RunFailed(f"could not write Ray's token to {path}: {error.strerror or error}") from error


def _write_token(path: Path) -> None:
    """Write a new token in one step, so that a Ray that starts at the same time reads all of it or none."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, written = tempfile.mkstemp(dir=path.parent)  # its mode is 0600
    try:
        with os.fdopen(handle, "w") as file:
            file.write(secrets.token_hex(_TOKEN_BYTES))
        with suppress(FileExistsError):  # another Ray was quicker: its token counts
            os.link(written, path)
    finally:
        Path(written).unlink()


class RayFolder:
    """The folder of one Ray that is started here: private, and gone after `remove`, or after the end of this process.

    A guard (guard.py) runs beside it, which clears up as soon as this process lets it, or ends in whatever way.
    """

    def __init__(self) -> None:
        """Make the folder among the temporary files. Raises RunFailed where that fails."""
        base = _base()
        self._before = _ports([psutil.Process()])
        try:
            self._path = Path(tempfile.mkdtemp(prefix="ravnest-ray-", dir=base))  # its mode is 0700
            self._guard = subprocess.Popen(
                [sys.executable, "-I", guard.__file__, str(self._path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # a Ctrl-C in the terminal is not for it
                text=True,
            )
        except OSError as error:
            raise RunFailed(f"could not make a folder for Ray in {base}: {error.strerror or error}") from error

    @property
    def for_ray(self) -> Path:
        """The folder to name to Ray. Ray opens it to everyone, but nobody else passes the one above."""
        return self._path / "r"

    def check(self) -> None:
        """Raises RunFailed where the Ray that uses this folder listens on a port that another machine can reach."""
        require_loopback(_ports([psutil.Process(), *self.watch()]) - self._before)

    def watch(self) -> list[psutil.Process]:
        """Tell the guard of the processes of the Ray that uses this folder, and return them: all that this process has
        started with the folder's name, and what they have started."""
        found: dict[int, psutil.Process] = {}
        for process in psutil.Process().children():
            with suppress(psutil.Error):  # it may just have ended
                if process.pid != self._guard.pid and any(str(self._path) in each for each in process.cmdline()):
                    found |= {each.pid: each for each in (process, *process.children(recursive=True))}
        if self._guard.stdin is not None:
            with suppress(OSError):  # somebody has killed the guard
                self._guard.stdin.write("".join(f"{pid}\n" for pid in found))
                self._guard.stdin.flush()
        return list(found.values())

    def remove(self) -> None:
        """Let the guard end the processes that were watched and are not leaving, and remove the folder."""
        try:
            self._guard.communicate(timeout=2 * guard.END_S)
        except subprocess.TimeoutExpired:
            self._guard.kill()
            self._guard.wait()
        shutil.rmtree(self._path, ignore_errors=True)  # where the guard could not


def workers() -> list[int]:
    """The ids of the stages' processes, and of the workers, of a Ray that this process has started."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # it may just have ended
            if is_worker(process.cmdline()):
                found.append(process.pid)
    return found


def is_worker(command: list[str]) -> bool:
    """Whether this is the command line of a stage's process, or of an actor, which Ray writes anew, that starts one."""
    return bool(command) and (command[0].startswith(_WORKERS) or command[1:3] == ["-m", PROGRAM])


def _base() -> Path:
    """The folder of temporary files, or /tmp where its path is so long that Ray's sockets would find no place."""
    given = os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()
    return Path(given if len(given) <= _LONGEST_BASE else "/tmp")


@contextmanager
def on_loopback() -> Iterator[None]:
    """A Ray that is started meanwhile takes 127.0.0.1 for the address of this machine, and listens there alone."""
    from ray._private import ray_constants  # it has read the environment once, when it was first imported

    before, constant = os.environ.get(_ONE_MACHINE), ray_constants.ENABLE_RAY_CLUSTER
    os.environ[_ONE_MACHINE], ray_constants.ENABLE_RAY_CLUSTER = "0", False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = constant
        if before is None:
            del os.environ[_ONE_MACHINE]
        else:
            os.environ[_ONE_MACHINE] = before


def _ports(processes: list[psutil.Process]) -> set[tuple[str, str, int]]:
    """The ports that processes listen on, as (name of the process, address, port)."""
    found = set()
    for process in processes:
        try:
            name = process.name()
            listening = [one for one in process.net_connections("inet") if one.status == psutil.CONN_LISTEN]
        except psutil.Error:
            continue  # it has just ended
        found |= {(name, one.laddr.ip, one.laddr.port) for one in listening}
    return found


def require_loopback(listening: set[tuple[str, str, int]]) -> None:
    """Raises RunFailed where another machine can reach one of these ports: (name of the process, address, port)."""
    exposed = sorted(f"{name} on {host}:{port}" for name, host, port in listening if not _is_loopback(host))
    if exposed:
        raise RunFailed(
            f"a run of one machine is to be reached from no other, and Ray listens there: {', '.join(exposed)}. Please"
            " report this with the version of Ray (`pip show ray`)"
        )


def _is_loopback(host: str) -> bool:
    address = ipaddress.ip_address(host.partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback
