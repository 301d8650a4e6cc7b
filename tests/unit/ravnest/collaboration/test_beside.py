import threading

import pytest

from ravnest.collaboration.beside import BesideInThread
from ravnest.collaboration.trainer import MicroBatch, NotFinite


def test_something_is_tended_while_work_is_done_and_its_result_is_returned() -> None:
    tended = threading.Event()

    def work() -> MicroBatch:
        assert tended.wait(30.0), "nothing was tended"
        assert threading.current_thread() is not threading.main_thread()
        return MicroBatch(0.5, 8)

    with BesideInThread() as beside:
        assert beside.run(work, lambda wait_s: tended.set()) == MicroBatch(0.5, 8)


def test_an_error_of_the_work_or_of_what_is_tended_is_raised() -> None:
    done = threading.Event()

    def fails() -> MicroBatch:
        raise NotFinite("the loss of a micro-batch is nan")

    def waits() -> MicroBatch:
        done.wait(30.0)
        return MicroBatch(0.5, 8)

    def breaks(wait_s: float) -> None:
        done.set()
        raise ConnectionError("the line has ended")

    with BesideInThread() as beside:
        with pytest.raises(NotFinite):
            beside.run(fails, lambda wait_s: None)
        with pytest.raises(ConnectionError):
            beside.run(waits, breaks)
