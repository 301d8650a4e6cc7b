"""The actor of a stage with a real process, which ends in an unusual way."""

import psutil
import pytest

from ravnest.driver.ray import stage_host
from ravnest.driver.ray.stage_host import StageActor, ended_how

pytestmark = pytest.mark.timeout(60)


def test_a_process_that_is_killed_is_told_of_and_so_is_its_child_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stage_host, "PROGRAM", "tests.support.dies_with_a_child")
    actor = StageActor("c0.s0", b"")
    said, child = actor.prepare()
    assert said == "said"
    assert actor.run(b"") == ("died", ended_how(137))
    assert not psutil.pid_exists(int(child)) or psutil.Process(int(child)).status() == psutil.STATUS_ZOMBIE
    actor.end()
