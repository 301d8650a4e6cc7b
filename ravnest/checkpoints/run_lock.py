"""The lock on a run's folder: one process at a time writes there.

In: a folder. Out: a `RunLock`, or an InvalidInput that names the owner. The lock is the operating system's (flock) on
the open file `.lock`, so it ends with its process however that ends, and a file that a crash has left locks nothing.
No other process can hold it on: the file is closed on exec, and in the child of a fork.

What flock does not reach: other machines, on a network file system that keeps locks local (docs/training.md).
"""

import contextlib
import errno
import fcntl
import json
import os
import socket
import stat
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from ravnest.errors import InvalidInput

LOCK = ".lock"
NO_LOCKS: Final = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTTY})
"""What the operating system says of a file system that has no locks."""

_LONGEST_OWNER_BYTES = 4096


class RunLock:
    """The lock of one folder. Making one takes it; `release` gives it back."""

    def __init__(self, folder: Path) -> None:
        """Take the lock of `folder`, which exists.

        Raises InvalidInput where another process, or another thread of this one, holds it, and where its file cannot be
        written.
        """
        self._path = folder / LOCK
        try:
            self._file, self.locks = _open(self._path)
        except BlockingIOError:
            raise _taken(folder, self._path) from None
        except OSError as error:
            raise InvalidInput(f"cannot be written ({error.strerror or error})", path=str(self._path)) from None
        _HELD.add(self._file)
        owner = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%Y-%m-%d %H:%M:%S%z")}
        with contextlib.suppress(OSError):  # of a full disk: it locks all the same, and the refusal only says less
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, f"{json.dumps(owner)}\n".encode(), 0)

    locks: bool
    """Whether the file system has locks. Where it has none, nothing keeps another run out."""

    def __enter__(self) -> "RunLock":
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Remove the file and give the lock back. A second call has no effect."""
        if self._file not in _HELD:
            return
        _HELD.discard(self._file)
        with contextlib.suppress(OSError):  # the folder may be gone
            self._path.unlink()
        with contextlib.suppress(OSError):
            fcntl.flock(self._file, fcntl.LOCK_UN)
        os.close(self._file)


def _open(path: Path) -> tuple[int, bool]:
    """An open and locked file, and whether it could be locked at all. Raises BlockingIOError where somebody has it."""
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        if not stat.S_ISREG(os.fstat(file).st_mode):  # whoever is refused would wait for a pipe to say who has it
            os.close(file)
            raise OSError(errno.EINVAL, "it is no file")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            locks = True
        except OSError as error:
            if error.errno not in NO_LOCKS:
                os.close(file)
                raise
            locks = False
        if not locks or _is_at(file, path):
            return file, locks
        os.close(file)  # its owner has removed it meanwhile, and a lock on a file without a name keeps nobody out


def _is_at(file: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False


LockState = Literal["free", "held", "left", "unknown"]
"""free: there is none; held: its process lives; left: its process has ended without giving it back; unknown: the file
system does not tell, or the process is one of another machine, whose lock may not be seen here."""


@dataclass(frozen=True)
class LockOwner:
    """The process that holds a lock, or held it."""

    pid: int
    host: str
    since: str

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host!r}, since {self.since}"


def look_at_lock(folder: Path) -> tuple[LockState, LockOwner | None]:
    """Return the state of a folder's lock and its owner, None where there is none or none is named.

    The lock is tried for an instant, shared with others who look. A run that begins in this instant is told that the
    folder is in use.
    """
    path = folder / LOCK
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return "free", None
    try:
        owner = _owner(path)
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return "held", owner
        except OSError:
            return "unknown", owner
        if not _is_at(file, path):
            return "free", None
        return "left" if owner is None or owner.host == socket.gethostname() else "unknown", owner
    finally:
        os.close(file)


def _owner(path: Path) -> LockOwner | None:
    try:
        with path.open("rb") as file:
            owner = json.loads(file.read(_LONGEST_OWNER_BYTES))
        return LockOwner(int(owner["pid"]), str(owner["host"]), str(owner["since"]))
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None


def _taken(folder: Path, path: Path) -> InvalidInput:
    owner = _owner(path)
    who = "by a process that has just begun or ended" if owner is None else f"by {owner}"
    hint = "wait for it to end or interrupt it (Ctrl-C), then add --resume; or name another folder with --out"
    return InvalidInput(f"is in use {who}: one run at a time writes to a folder", path=str(folder), hint=hint)


_HELD: set[int] = set()
"""The open files of all locks of this process."""


def _let_go_in_child() -> None:
    """A child that was forked has the same open file, which would hold the lock on after its parent has died."""
    while _HELD:
        os.close(_HELD.pop())


os.register_at_fork(after_in_child=_let_go_in_child)
