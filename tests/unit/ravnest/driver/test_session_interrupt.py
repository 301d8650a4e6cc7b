import signal
import threading

import pytest

from ravnest.driver.session import StopOnInterrupt


@pytest.mark.parametrize("which", [signal.SIGINT, signal.SIGTERM])
def test_before_there_is_anything_to_save_the_first_signal_ends_it(which):
    with StopOnInterrupt() as interrupt, pytest.raises(KeyboardInterrupt):
        signal.raise_signal(which)
    assert not interrupt.wanted


def test_the_first_interrupt_is_a_wish_and_the_second_ends_at_once():
    with StopOnInterrupt() as interrupt:
        interrupt.gracefully = True
        assert not interrupt.wanted
        signal.raise_signal(signal.SIGINT)
        assert interrupt.wanted
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_a_termination_is_a_wish_however_often_it_comes():
    with StopOnInterrupt() as interrupt:
        interrupt.gracefully = True
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        assert interrupt.wanted


def test_it_takes_the_signals_back_from_whoever_has_taken_them():
    with StopOnInterrupt() as interrupt:
        interrupt.gracefully = True
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        interrupt.arm()
        signal.raise_signal(signal.SIGTERM)
        assert interrupt.wanted


def test_the_handlers_of_before_come_back():
    before = [signal.getsignal(which) for which in (signal.SIGINT, signal.SIGTERM)]
    with StopOnInterrupt():
        assert signal.getsignal(signal.SIGINT) != before[0]
    assert [signal.getsignal(which) for which in (signal.SIGINT, signal.SIGTERM)] == before


def test_outside_the_main_thread_no_handler_is_set():
    before = [signal.getsignal(which) for which in (signal.SIGINT, signal.SIGTERM)]
    within = []

    def run():
        with StopOnInterrupt() as interrupt:
            interrupt.arm()
            within.extend(signal.getsignal(which) for which in (signal.SIGINT, signal.SIGTERM))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert within == before
