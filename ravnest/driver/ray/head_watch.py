"""Whether the head of the Ray cluster still answers, for a driver that Ray would end without a word.

Ray ends each process that is connected to it about a minute after its head is gone, and nothing can be said then. So a
thread looks every few seconds, by a connection that says nothing. In: the address of the head. Out: a sentence for the
user, once for each time that the head falls silent or answers again.
"""

import threading
from collections.abc import Callable

from ravnest.driver.ray.session import silence_at

LOOK_EVERY_S = 5.0
SILENT_LOOKS = 2
"""After so many looks without an answer the user is told."""
_CLOSE_S = 1.0

SILENT = (
    "Ray's head at {address} does not answer ({why}): Ray ends this driver about a minute after it is gone, and the"
    " stages train on and wait; start Ray again, and go on with --resume and its address"
)
BACK = "Ray's head at {address} answers again"


class HeadWatch:
    """Looks after the head in a thread of its own. `take` is for another thread; a lock is between the two."""

    def __init__(
        self,
        address: str,
        look: Callable[[str], str | None] = silence_at,
        wait: Callable[[threading.Event, float], bool] = threading.Event.wait,
    ) -> None:
        """`look` gives the reason why nothing answers at an address; None where something does. `wait` waits for an
        event for so many seconds, and says whether it was set."""
        self._address = address
        self._look = look
        self._wait = wait
        self._lock = threading.Lock()
        self._told: list[str] = []
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="head watch", daemon=True)
        self._thread.start()

    def take(self) -> list[str]:
        """What there is to say since the last call."""
        with self._lock:
            told, self._told = self._told, []
        return told

    def close(self) -> None:
        """Look no more. A look that is under way is not waited for."""
        self._closed.set()
        self._thread.join(_CLOSE_S)

    def _watch(self) -> None:
        silent = 0
        while not self._wait(self._closed, LOOK_EVERY_S):
            why = self._look(self._address)
            if why is None and silent >= SILENT_LOOKS:
                self._say(BACK.format(address=self._address))
            silent = 0 if why is None else silent + 1
            if silent == SILENT_LOOKS:
                self._say(SILENT.format(address=self._address, why=why))

    def _say(self, text: str) -> None:
        with self._lock:
            self._told.append(text)
