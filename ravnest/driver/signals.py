"""What signals do to a run: an end with a checkpoint, or a pause of all of it.

In: signals of the terminal and of other programs, and the processes of the stages. Out: a wish to stop, and stages that
stand still and go on together with the driver.

Python lets only the main thread set handlers of signals. Entered in another thread, as in a run that a notebook or a
server starts in the background, both classes set none, and signals do what they did before.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from types import FrameType

_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopOnInterrupt:
    """While it is entered, SIGINT, SIGTERM and SIGHUP end the run, with a checkpoint where there is something to save.

    A SIGHUP that was ignored before (`nohup`) stays ignored.
    """

    def __init__(self) -> None:
        self.gracefully = False
        """Whether the first signal asks for an orderly end (`wanted`). Until then it raises KeyboardInterrupt."""
        self.wanted = False
        """Whether the user has asked for an end."""
        self._before: dict[signal.Signals, object] = {}

    def __enter__(self) -> "StopOnInterrupt":
        if threading.current_thread() is threading.main_thread():
            before = {which: signal.getsignal(which) for which in _ENDS}
            self._before = {
                which: handler
                for which, handler in before.items()
                if which != signal.SIGHUP or handler is not signal.SIG_IGN
            }
            self.arm()
        return self

    def arm(self) -> None:
        """Set the handlers of all signals again, where another library has set its own meanwhile."""
        for which in self._before:
            signal.signal(which, self._on_signal)

    @contextlib.contextmanager
    def hangup_deferred(self) -> Iterator[None]:
        """A SIGHUP inside the block is heard at its end, and processes that are started inside never hear of one.

        A terminal that closes sends it to all processes of the foreground. Those that carry the run have to live on
        until its checkpoint is written.
        """
        if signal.SIGHUP not in self._before:
            yield
            return
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def __exit__(self, *exc: object) -> None:
        for which, handler in self._before.items():
            signal.signal(which, handler)  # type: ignore[arg-type]

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if not self.gracefully or (self.wanted and number == signal.SIGINT):
            raise KeyboardInterrupt
        self.wanted = True


class PauseTogether:
    """While it is entered, Ctrl-Z (SIGTSTP) stops the stages' processes on this machine too, and `fg` continues them.

    A terminal stops and continues its foreground group alone, and the stages' processes are in groups of their own:
    they would train on without a driver, and end when it has been silent for too long.
    """

    def __init__(self, processes: Callable[[], Iterable[int]] | None) -> None:
        """`processes` tells the ids of those that run at that moment; None: there are none on this machine."""
        self._processes = processes
        self._set = False

    def __enter__(self) -> "PauseTogether":
        # A program that is started without job control finds the signal ignored, and it stays so.
        mine = threading.current_thread() is threading.main_thread()
        if self._processes is not None and mine and signal.getsignal(signal.SIGTSTP) is signal.SIG_DFL:
            self._set = True
            signal.signal(signal.SIGTSTP, self._on_stop)
        return self

    def __exit__(self, *exc: object) -> None:
        if self._set:
            signal.signal(signal.SIGTSTP, signal.SIG_DFL)

    def _on_stop(self, number: int, frame: FrameType | None) -> None:
        processes = () if self._processes is None else tuple(self._processes())
        _send(processes, signal.SIGSTOP)
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        signal.pthread_kill(threading.get_ident(), signal.SIGTSTP)  # this process stands still here
        signal.signal(signal.SIGTSTP, self._on_stop)
        _send(processes, signal.SIGCONT)


def _send(processes: Iterable[int], which: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, which)
