"""The actor of a stage with a real process, which ends in an unusual way."""

import time

import psutil
import pytest

from ravnest.driver.ray import stage_host
from ravnest.driver.ray.stage_host import StageActor, ended_how

pytestmark = pytest.mark.timeout(60)

GONE_BY_S = 10.0


def test_a_process_that_is_killed_is_told_of_and_so_is_its_child_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stage_host, "PROGRAM", "tests.support.dies_with_a_child")
    actor = StageActor("c0.s0", b"")
    said, child = actor.prepare()
    assert said == "said"
    assert actor.run(b"") == ("died", ended_how(137))
    actor.end()
    by = time.monotonic() + GONE_BY_S  # a process that was killed ends soon, not at once
    while not is_gone(int(child)) and time.monotonic() < by:
        time.sleep(0.01)
    assert is_gone(int(child))


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
