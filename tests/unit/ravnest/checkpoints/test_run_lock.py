import errno
import fcntl
import os
import socket
from pathlib import Path

import pytest

from ravnest.checkpoints import run_lock
from ravnest.checkpoints.run_lock import LOCK, RunLock, look_at_lock
from ravnest.errors import InvalidInput


def test_the_second_owner_is_refused_and_told_who_the_first_is(tmp_path):
    first = RunLock(tmp_path)
    who = rf"is in use by process {os.getpid()} on '{socket.gethostname()}', since 20\d\d-\d\d-\d\d \d\d:\d\d:\d\d[+-]"
    with pytest.raises(InvalidInput, match=who) as refused:
        RunLock(tmp_path)
    assert refused.value.path == str(tmp_path)
    assert "--out" in (refused.value.hint or "")
    first.release()
    RunLock(tmp_path).release()


def test_one_that_was_refused_takes_nothing_from_the_owner(tmp_path):
    first = RunLock(tmp_path)
    for _ in range(2):
        with pytest.raises(InvalidInput, match="is in use"):
            RunLock(tmp_path)
    first.release()


def test_it_leaves_no_file_behind(tmp_path):
    lock = RunLock(tmp_path)
    assert (tmp_path / LOCK).is_file()
    lock.release()
    lock.release()
    assert list(tmp_path.iterdir()) == []


def test_what_a_crash_left_locks_nothing(tmp_path):
    (tmp_path / LOCK).write_text('{"pid": 1, "host": "elsewhere", "since": "yesterday"}')
    RunLock(tmp_path).release()


def test_an_owner_that_has_not_said_who_it_is_is_refused_all_the_same(tmp_path):
    first = RunLock(tmp_path)
    (tmp_path / LOCK).write_bytes(b"\xff\x00")
    with pytest.raises(InvalidInput, match="is in use by a process that has just begun or ended"):
        RunLock(tmp_path)
    first.release()


def test_a_lock_on_a_file_that_its_owner_has_removed_meanwhile_does_not_count(tmp_path, monkeypatch):
    """The second opens the file, the first removes it and lets go, a third makes a new one: the second owns nothing."""
    lock = fcntl.flock
    others = [RunLock(tmp_path)]

    def slow(file, how):
        if how & fcntl.LOCK_EX and len(others) == 1:
            others[0].release()
            others.append(None)
            others[1] = RunLock(tmp_path)
        lock(file, how)

    monkeypatch.setattr(run_lock.fcntl, "flock", slow)
    with pytest.raises(InvalidInput, match="is in use"):
        RunLock(tmp_path)
    others[1].release()


def test_a_file_system_without_locks_is_told_and_not_refused(tmp_path, monkeypatch):
    def without(file, how):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(run_lock.fcntl, "flock", without)
    lock = RunLock(tmp_path)
    assert not lock.locks
    lock.release()


@pytest.mark.parametrize("kind", ["folder", "link", "pipe"])
def test_what_is_no_file_is_named(tmp_path, kind):
    if kind == "folder":
        (tmp_path / LOCK).mkdir()
    elif kind == "pipe":
        os.mkfifo(tmp_path / LOCK)
    else:
        (tmp_path / LOCK).symlink_to("/dev/null")
    with pytest.raises(InvalidInput, match=r"\.lock: cannot be written \("):
        RunLock(tmp_path)


def test_the_file_is_not_inherited_by_programs_that_are_started(tmp_path):
    lock = RunLock(tmp_path)
    files = [path for path in Path("/proc/self/fd").iterdir() if path.exists()]
    its = [path for path in files if path.samefile(tmp_path / LOCK)]
    assert [os.get_inheritable(int(path.name)) for path in its] == [False]
    lock.release()


def test_a_child_that_was_forked_does_not_hold_the_lock_of_a_killed_owner_on(tmp_path):
    forked, said_forked = os.pipe()
    ended, end = os.pipe()
    owner = os.fork()
    if owner == 0:
        try:
            RunLock(tmp_path)
            if os.fork() == 0:
                os.close(end)
                os.write(said_forked, b"1")
                os.read(ended, 1)  # it lives until the test closes the other end
        finally:
            os._exit(0)  # without a release, as a killed process ends
    os.close(said_forked)
    try:
        assert os.read(forked, 1) == b"1"
        os.waitpid(owner, 0)
        assert (tmp_path / LOCK).is_file()
        RunLock(tmp_path).release()
    finally:
        for each in (forked, ended, end):
            os.close(each)


def test_whoever_looks_sees_the_owner_and_takes_nothing(tmp_path):
    assert look_at_lock(tmp_path) == ("free", None)
    lock = RunLock(tmp_path)
    state, owner = look_at_lock(tmp_path)
    assert (state, owner.pid, owner.host) == ("held", os.getpid(), socket.gethostname())
    kept = (tmp_path / LOCK).read_bytes()
    lock.release()
    assert look_at_lock(tmp_path) == ("free", None)
    (tmp_path / LOCK).write_bytes(kept)
    assert look_at_lock(tmp_path) == ("left", owner)
    RunLock(tmp_path).release()


def test_a_lock_that_may_be_kept_elsewhere_is_not_known(tmp_path, monkeypatch):
    (tmp_path / LOCK).write_text('{"pid": 1, "host": "elsewhere", "since": "yesterday"}')
    assert look_at_lock(tmp_path)[0] == "unknown"

    def no_locks(file, how):
        raise OSError(errno.ENOLCK, "No locks available")

    (tmp_path / LOCK).write_text("{}")
    monkeypatch.setattr(fcntl, "flock", no_locks)
    assert look_at_lock(tmp_path) == ("unknown", None)
