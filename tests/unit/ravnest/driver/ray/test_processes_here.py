"""Processes of stages on the driver's machine, with stand-ins for them."""

import os
import socket

import psutil
import pytest

from ravnest.driver.ray.processes_here import ProcessesHere
from ravnest.stage.own_process import process_space
from ravnest.stage.setup import StageAddress
from ring_allreduce.transport import PeerAddress


class Process:
    """A process that began at second 100 and lives until it is ended."""

    lives = True

    def __init__(self, pid: int) -> None:
        if pid == 404:
            raise psutil.NoSuchProcess(pid)
        self.pid = pid

    def create_time(self) -> float:
        return 100.0

    def is_running(self) -> bool:
        return self.lives

    def status(self) -> str:
        return str(psutil.STATUS_RUNNING)


def place(pid: int, machine: str | None = None, began_s: float = 100.0) -> StageAddress:
    here = process_space() if machine is None else machine
    return StageAddress(PeerAddress("127.0.0.1", 5000, 5001), here, pid, 1, began_s=began_s)


def test_ends_of_this_machine_are_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stage d is on a machine that has the name of this one."""
    monkeypatch.setattr(psutil, "Process", Process)
    stages = {"a": place(1), "b": place(404), "c": place(3, began_s=7.0), "d": place(4, machine=socket.gethostname())}
    adopted = ProcessesHere(stages)
    assert [stage for stage in stages if adopted.is_gone(stage)] == ["b", "c"]
    assert adopted.ids == [1]
    assert adopted.take_ended() == ["b", "c"]
    assert adopted.take_ended() == []
    monkeypatch.setattr(Process, "lives", False)
    assert adopted.take_ended() == ["a"]


def test_a_stage_that_begins_anew_is_told_of_by_its_new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "Process", Process)
    here = ProcessesHere({"a": place(404)})
    assert here.gone() == ["a"]
    here.add({"a": place(1), "b": place(404)})
    assert here.gone() == ["b"]
    here.forget(["b", "z"])
    assert here.gone() == []


def test_one_that_is_ended_is_told_of_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "Process", Process)
    killed: list[int] = []
    monkeypatch.setattr(os, "getpgid", lambda pid: pid + 1000)
    monkeypatch.setattr(os, "killpg", lambda group, number: killed.append(group))
    adopted = ProcessesHere({"a": place(1), "b": place(404)})
    adopted.end(["a", "b", "z"])
    assert killed == [1001]
    assert adopted.take_ended() == []
