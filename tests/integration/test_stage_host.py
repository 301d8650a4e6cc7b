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
    until_gone(int(child))


def test_a_stage_whose_shell_was_killed_goes_on_and_is_ended_with_its_actor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_host, "PROGRAM", "tests.support.answers_with_its_id")
    before = set(psutil.Process().children())
    actor = StageActor("c0.s0", b"")
    said, stage = actor.prepare()
    assert said == "said"
    (shell,) = set(psutil.Process().children()) - before
    shell.kill()
    until_gone(shell.pid)
    assert actor.run(b"") == ("said", stage)
    actor.end()
    until_gone(int(stage))
    assert actor.run(b"")[0] == "died"


def test_a_ready_process_takes_the_place_of_one_that_was_killed_and_ends_with_its_actor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stage_host, "PROGRAM", "tests.support.answers_with_its_id")
    actor = StageActor("c0.s0", b"")
    _, first = actor.prepare()
    _, second = actor.make_ready(0.0)
    assert second != first
    psutil.Process(int(first)).kill()
    assert actor.run(b"") == ("died", ended_how(137))
    assert actor.again("c0.s0", b"") == ("said", second)
    assert actor.run(b"") == ("said", second)
    _, third = actor.make_ready(0.0)
    actor.end()
    until_gone(int(second))
    until_gone(int(third))
    assert actor.make_ready(0.0)[0] == "died", "nobody needs it any more"


def test_a_stage_that_is_over_leaves_its_ready_process_for_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_host, "PROGRAM", "tests.support.answers_with_its_id")
    actor = StageActor("c0.s1", b"")
    actor.rest()
    _, first = actor.prepare()
    _, second = actor.make_ready(0.0)
    actor.rest()
    until_gone(int(first))
    assert not is_gone(int(second))
    assert actor.again("c1.s0", b"") == ("said", second)
    assert repr(actor) == "c1.s0"
    actor.rest()  # which was asked for before, and comes late
    assert actor.run(b"") == ("said", second)
    actor.end()
    until_gone(int(second))


def test_where_the_ready_process_has_ended_too_a_new_one_takes_the_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_host, "PROGRAM", "tests.support.answers_with_its_id")
    actor = StageActor("c0.s0", b"")
    _, first = actor.prepare()
    _, second = actor.make_ready(0.0)
    for each in (first, second):
        psutil.Process(int(each)).kill()  # nobody knows of the second one's end when it is asked
    said, third = actor.again("c0.s0", b"")
    assert said == "said"
    assert third not in (first, second)
    actor.end()
    until_gone(int(third))


def until_gone(pid: int) -> None:
    by = time.monotonic() + GONE_BY_S  # a process that was killed ends soon, not at once
    while not is_gone(pid) and time.monotonic() < by:
        time.sleep(0.01)
    assert is_gone(pid)


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
