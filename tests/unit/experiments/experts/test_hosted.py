from pathlib import Path

import pytest

from experiments.experts.hosted import Alone


def test_the_time_for_which_a_thread_waits_for_a_processor_is_taken_off(monkeypatch: pytest.MonkeyPatch) -> None:
    told = iter(["100 50 3\n", "300 150 9\n"])
    monkeypatch.setattr(Path, "read_text", lambda _: next(told))
    assert Alone(7).factor() == 1.5


def test_the_kernel_tells_it_of_this_thread() -> None:
    assert Alone("thread-self").factor() >= 1.0
