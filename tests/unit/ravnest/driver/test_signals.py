import signal
import threading

import pytest

from ravnest.driver import signals
from ravnest.driver.signals import PauseTogether, StopOnInterrupt

ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture(autouse=True)
def hangup_ends_programs():
    """Tests that are started with nohup find the signal ignored."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("which", ENDS)
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


@pytest.mark.parametrize("which", [signal.SIGTERM, signal.SIGHUP])
def test_a_termination_is_a_wish_however_often_it_comes(which):
    with StopOnInterrupt() as interrupt:
        interrupt.gracefully = True
        signal.raise_signal(which)
        signal.raise_signal(which)
        assert interrupt.wanted


def test_a_closed_terminal_ends_no_run_that_was_started_to_survive_it():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopOnInterrupt() as interrupt:
            interrupt.gracefully = True
            signal.raise_signal(signal.SIGHUP)
            assert not interrupt.wanted
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_terminal_that_closes_while_processes_are_started_is_heard_of_afterwards():
    with StopOnInterrupt() as interrupt:
        interrupt.gracefully = True
        with interrupt.hangup_deferred():
            signal.raise_signal(signal.SIGHUP)
            assert not interrupt.wanted
            assert signal.SIGHUP in signal.pthread_sigmask(signal.SIG_BLOCK, [])  # what a child inherits
        assert interrupt.wanted
    assert signal.SIGHUP not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_it_takes_the_signals_back_from_whoever_has_taken_them():
    with StopOnInterrupt() as interrupt:
        interrupt.gracefully = True
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        interrupt.arm()
        signal.raise_signal(signal.SIGTERM)
        assert interrupt.wanted


def test_the_handlers_of_before_come_back():
    before = [signal.getsignal(which) for which in ENDS]
    with StopOnInterrupt():
        assert signal.getsignal(signal.SIGINT) != before[0]
    assert [signal.getsignal(which) for which in ENDS] == before


def test_outside_the_main_thread_no_handler_is_set():
    before = [signal.getsignal(which) for which in ENDS]
    within = []

    def run():
        with StopOnInterrupt() as interrupt:
            interrupt.arm()
            within.extend(signal.getsignal(which) for which in ENDS)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert within == before


@pytest.fixture
def sent(monkeypatch):
    """What is sent to processes, instead of sending it; None stands for the moment in which this one stands still."""
    made = []

    def kill(process, which):
        made.append((process, which))
        if process == 404:
            raise ProcessLookupError

    def stop(thread, which):
        assert which == signal.SIGTSTP
        assert signal.getsignal(which) is signal.SIG_DFL
        made.append(None)

    monkeypatch.setattr(signals.os, "kill", kill)
    monkeypatch.setattr(signals.signal, "pthread_kill", stop)
    return made


def test_ctrl_z_stops_the_stages_and_fg_continues_them(sent):
    running = [11, 404, 12]
    with PauseTogether(lambda: iter(running)):
        signal.raise_signal(signal.SIGTSTP)
        running.append(13)
        signal.raise_signal(signal.SIGTSTP)
    expected = []
    for processes in ((11, 404, 12), (11, 404, 12, 13)):
        expected += [*((one, signal.SIGSTOP) for one in processes), None]
        expected += [(one, signal.SIGCONT) for one in processes]
    assert sent == expected
    assert signal.getsignal(signal.SIGTSTP) is signal.SIG_DFL


def test_a_program_without_job_control_stays_without_it(sent):
    before = signal.signal(signal.SIGTSTP, signal.SIG_IGN)
    try:
        with PauseTogether(lambda: [11]):
            signal.raise_signal(signal.SIGTSTP)
        assert signal.getsignal(signal.SIGTSTP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTSTP, before)
    assert sent == []


def test_without_processes_of_this_machine_a_pause_is_what_it_was(sent):
    with PauseTogether(None):
        assert signal.getsignal(signal.SIGTSTP) is signal.SIG_DFL
