from collections.abc import Callable

import pytest

from ravnest.collaboration.evaluations import BATCH_S, BATCHES, LOOK_S, STOP_S, Evaluations, Found, at_once, in_thread


class World:
    """Work waits until a test does it."""

    def __init__(self) -> None:
        self.works: list[Callable[[], None]] = []
        self.slept: list[float] = []
        self.evaluations = Evaluations(self.works.append, self.slept.append, lambda: sum(self.slept))
        self.asked: list[bool] = []

    def work(self, stop: Callable[[], bool]) -> Found:
        self.asked.append(stop())
        return {"loss": 1.5}


def test_what_was_found_is_told_once_and_then_another_may_begin() -> None:
    world = World()
    world.evaluations.begin(7, world.work)
    assert world.evaluations.under_way == 7
    assert world.evaluations.finished() is None
    world.works.pop()()
    assert world.evaluations.finished() == (7, {"loss": 1.5})
    assert world.evaluations.under_way is None
    assert world.evaluations.finished() is None
    assert world.asked == [False]


def test_what_nobody_wants_any_more_is_told_to_stop_and_waited_for_not_for_ever() -> None:
    world = World()
    world.evaluations.begin(1, world.work)
    world.evaluations.stop()
    assert sum(world.slept) == pytest.approx(STOP_S)
    late = world.works.pop()
    world.evaluations.begin(2, world.work)
    late()  # and changes nothing of the next one
    assert world.asked == [True]
    assert world.evaluations.finished() is None
    world.works.pop()()
    assert world.evaluations.finished() == (2, {"loss": 1.5})


def test_who_waits_may_be_asked_to_stop() -> None:
    world = World()
    world.evaluations.begin(1, world.work)
    stops = iter([False, False, True])
    world.evaluations.wait(lambda: next(stops))
    assert world.slept == [LOOK_S] * 2
    world.works.pop()()
    world.evaluations.wait(lambda: False)


def test_work_that_hangs_is_given_up_and_is_nobody_s_any_more() -> None:
    world = World()
    world.evaluations.begin(1, world.work)
    world.evaluations.wait(lambda: False)
    assert sum(world.slept) == pytest.approx(BATCH_S, abs=2 * LOOK_S)
    assert world.evaluations.give_up() == 1
    assert world.evaluations.hangs
    assert world.evaluations.under_way is None
    assert world.evaluations.give_up() is None
    world.works.pop()()
    assert world.asked == [True], "it is told to stop, if it ever asks"
    assert world.evaluations.finished() is None


def test_a_batch_may_take_many_times_the_longest_one_before_it() -> None:
    world = World()
    longest_s = BATCH_S / 2

    def slow(stop: Callable[[], bool]) -> Found:
        for _ in range(3):
            world.slept.append(longest_s)
            assert not stop()
        world.slept.append(BATCHES * longest_s)
        assert world.evaluations.give_up() is None
        world.slept.append(1.0)
        assert world.evaluations.give_up() == 1
        return {}

    world.evaluations.begin(1, slow)
    world.works.pop()()


def test_an_error_is_raised_where_it_is_heard() -> None:
    def fails(_: Callable[[], bool]) -> Found:
        raise ValueError("no such file")

    evaluations = Evaluations(at_once)
    evaluations.begin(1, fails)
    with pytest.raises(ValueError, match="no such file"):
        evaluations.finished()
    assert evaluations.under_way is None


def test_a_thread_of_its_own_does_it() -> None:
    evaluations = Evaluations(in_thread)
    evaluations.begin(1, lambda stop: {"loss": 2.0})
    evaluations.wait(lambda: False)
    assert evaluations.finished() == (1, {"loss": 2.0})
