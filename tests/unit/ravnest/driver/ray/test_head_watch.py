"""The watch over Ray's head, with looks that the test decides about."""

import threading

from ravnest.driver.ray.head_watch import HeadWatch


def told(looks: list[str | None]) -> list[str]:
    """What is told after these looks."""
    left, done = list(looks), threading.Event()

    def wait(closed: threading.Event, seconds: float) -> bool:
        if not left:
            done.set()
        return closed.wait(None if not left else 0.0)

    watch = HeadWatch("192.0.2.1:6379", lambda address: left.pop(0), wait)
    assert done.wait(60)
    watch.close()
    found = watch.take()
    assert watch.take() == []
    return found


def test_a_head_that_answers_or_misses_one_look_is_not_told_of() -> None:
    assert told([None, "refused", None, "refused", None]) == []


def test_a_head_that_falls_silent_is_told_of_once_and_so_is_its_return() -> None:
    silent, back = told(["refused"] * 5 + [None, None])
    assert "192.0.2.1:6379 does not answer (refused)" in silent
    assert "--resume" in silent
    assert back == "Ray's head at 192.0.2.1:6379 answers again"
