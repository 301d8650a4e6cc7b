import threading

import pytest

from ravnest.pipeline import instructions as ins
from ravnest.stage.executor import ComputeFinished, InlineExecutor, ThreadExecutor


def boom():
    raise ZeroDivisionError("boom")


def test_inline_results_come_once_in_order():
    executor = InlineExecutor()
    executor.submit(ins.RunForward(0), lambda: "a")
    executor.submit(ins.RunForward(1), boom)
    first, second = executor.finished()
    assert first == ComputeFinished(ins.RunForward(0), result="a")
    assert isinstance(second.error, ZeroDivisionError)
    assert executor.finished() == []
    executor.submit(ins.RunForward(2), lambda: "b")
    executor.close(0.0)
    assert executor.finished() == []


@pytest.fixture
def threaded():
    woken, prepared = threading.Semaphore(0), []
    executor = ThreadExecutor(woken.release, lambda: prepared.append(threading.current_thread().name))
    yield executor, woken, prepared
    executor.close(5.0)


def test_a_thread_computes_in_order_after_its_preparation_and_wakes_the_owner(threaded):
    executor, woken, prepared = threaded
    for number in range(5):
        executor.submit(ins.RunForward(number), lambda n=number: (n, threading.current_thread().name))
    for _ in range(5):
        assert woken.acquire(timeout=10.0)
    assert [finished.result for finished in executor.finished()] == [(n, "compute") for n in range(5)]
    assert prepared == ["compute"]


def test_a_failure_is_a_result_and_the_thread_goes_on(threaded):
    executor, woken, _ = threaded
    executor.submit(ins.RunForward(0), boom)
    executor.submit(ins.RunForward(1), lambda: "still here")
    for _ in range(2):
        assert woken.acquire(timeout=10.0)
    failed, fine = executor.finished()
    assert isinstance(failed.error, ZeroDivisionError)
    assert fine.result == "still here"


def test_closing_does_not_wait_longer_than_it_may(threaded):
    executor, _, _ = threaded
    begun, release = threading.Event(), threading.Event()
    executor.submit(ins.RunForward(0), lambda: (begun.set(), release.wait(10.0)))
    assert begun.wait(10.0)
    executor.close(0.0)
    assert executor.finished() == []
    release.set()


def test_a_listener_hears_of_results_in_the_computing_thread_and_may_submit_the_next(threaded):
    executor, woken, _ = threaded
    heard = []

    def listener(finished):
        heard.append((finished.instruction, threading.current_thread().name))
        if finished.instruction == ins.RunForward(2):
            return False
        executor.submit(ins.RunForward(finished.instruction.micro_batch + 1), lambda: None)
        return True

    executor.listen(listener)
    executor.submit(ins.RunForward(0), lambda: None)
    assert woken.acquire(timeout=10.0)
    assert [finished.instruction for finished in executor.finished()] == [ins.RunForward(2)]
    assert heard == [(ins.RunForward(number), "compute") for number in range(3)]
    assert not woken.acquire(timeout=0.0)


def test_what_a_listener_raises_is_handed_back(threaded):
    executor, woken, _ = threaded
    executor.listen(lambda finished: boom())
    executor.submit(ins.RunForward(0), lambda: None)
    assert woken.acquire(timeout=10.0)
    (failed,) = executor.finished()
    assert isinstance(failed.error, ZeroDivisionError)
