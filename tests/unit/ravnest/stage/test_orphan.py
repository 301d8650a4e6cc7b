"""How long a stage lives without its driver, and the end of its process."""

import threading

import pytest

from ravnest.errors import NodeLost
from ravnest.stage.orphan import ORPHAN_FLOOR_S, DriverWatch, Leash, orphan_deadline

LONG_S = 3600.0


def test_a_regular_driver_is_given_up_at_the_floor() -> None:
    deadline = orphan_deadline(0.0)
    for second in range(1, 30):
        deadline.heard(float(second))
    assert not deadline.expired(29.0 + ORPHAN_FLOOR_S)
    assert deadline.expired(29.1 + ORPHAN_FLOOR_S)


def test_a_slow_driver_is_waited_for_in_proportion() -> None:
    deadline = orphan_deadline(0.0)
    for second in range(10, 300, 10):
        deadline.heard(float(second))
    assert not deadline.expired(290.0 + 3 * ORPHAN_FLOOR_S)
    assert deadline.expired(290.0 + 5 * ORPHAN_FLOOR_S)


def test_a_process_whose_time_is_over_ends() -> None:
    ended = threading.Event()
    leash = Leash(ended.set)
    leash.allow(LONG_S)
    leash.allow(0.0)  # the later word counts
    assert ended.wait(60)


def test_a_process_that_is_let_go_on_has_no_end_before_it() -> None:
    before = set(threading.enumerate())
    leash = Leash(lambda: None)
    leash.allow(LONG_S)
    (watch,) = set(threading.enumerate()) - before
    leash.release()
    leash.release()
    watch.join(60)
    assert not watch.is_alive()


def test_time_in_which_a_process_stood_still_is_not_its_own() -> None:
    """Paused for an hour, it goes on; the seconds that it has had before count."""
    clock = iter([0.0, 0.0, *(float(second) for second in range(1, 100)), *range(3700, 4000)])
    read: list[float] = []
    ended = threading.Event()

    def now() -> float:
        read.append(next(clock))
        return read[-1]

    Leash(ended.set, now=now, wait=lambda released, seconds: released.is_set()).allow(180.0)
    assert ended.wait(60)
    assert 3700.0 + 180.0 - 100.0 <= read[-1] <= 3700.0 + 180.0 - 98.0


def test_a_stage_without_a_driver_waits_as_long_as_its_job_says() -> None:
    watch = DriverWatch(0.0, keep_s=600.0)
    assert not watch.look(ORPHAN_FLOOR_S)
    assert watch.look(ORPHAN_FLOOR_S + 1.0), "it begins to wait"
    assert not watch.look(ORPHAN_FLOOR_S + 2.0)
    assert watch.waits
    assert watch.heard(300.0), "which ends the wait"
    assert not watch.heard(301.0)
    assert not watch.waits
    assert watch.look(700.0)
    with pytest.raises(NodeLost, match="the driver has been silent for 3699 s"):
        watch.look(4000.0)
