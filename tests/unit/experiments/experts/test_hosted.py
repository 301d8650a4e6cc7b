from pathlib import Path

import pytest

from experiments.experts.hosted import Alone, rate_of_passes


def test_the_time_for_which_a_thread_waits_for_a_processor_is_taken_off(monkeypatch: pytest.MonkeyPatch) -> None:
    told = iter(["100 50 3\n", "300 150 9\n"])
    monkeypatch.setattr(Path, "read_text", lambda _: next(told))
    assert Alone(7).factor() == 1.5


def test_the_kernel_tells_it_of_this_thread() -> None:
    assert Alone("thread-self").factor() >= 1.0


def test_whole_passes_count_from_one_end_to_another_whenever_the_clock_was_started() -> None:
    three = [[1.0, 3.0, 5.0], [2.5, 4.5], [2.0]]
    assert rate_of_passes(three) == 1.5  # three in flight, each of which takes 2 s
    assert rate_of_passes([[one + 0.9 for one in each] for each in three]) == pytest.approx(1.5)
    assert rate_of_passes([[], [1.0]]) == 0.0
