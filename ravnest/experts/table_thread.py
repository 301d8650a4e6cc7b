"""A node of the hash table in a thread of its own, for programs that wait for other things than asyncio.

In: what a node is opened with, and coroutines to run on it. Out: their results as futures. All that the node does
happens in its thread; each call has the table's own deadline.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from ravnest.dht import HashTable, KeyIdentity

OPEN_S = 20.0
"""To join the table, and once more for the thread to say so."""

CLOSE_S = 5.0

_Result = TypeVar("_Result")


class TableThread:
    """One node, from `__init__` to `close`."""

    def __init__(
        self,
        listen: Sequence[str] | None,
        peers: Sequence[str],
        identity: KeyIdentity,
        *,
        outwards_only: bool = False,
    ) -> None:
        """Join the table, or begin one where there are no peers. Raises as `HashTable.opened` does."""
        self.public_key = identity.public_key
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="hash table", daemon=True)
        self._thread.start()
        opened = HashTable.opened(listen, peers, identity=identity, outwards_only=outwards_only, deadline_s=OPEN_S)
        try:
            self._table = asyncio.run_coroutine_threadsafe(opened, self._loop).result(2 * OPEN_S)
        except BaseException:
            self._end()
            raise
        self.addresses = [str(address) for address in self._table.addresses]

    def run(self, work: Callable[[HashTable], Coroutine[Any, Any, _Result]]) -> Future[_Result]:
        """Begin `work` on the node; its result, or what it raised, is the future's."""
        return asyncio.run_coroutine_threadsafe(work(self._table), self._loop)

    def close(self) -> None:
        """Close the node and end the thread. A second call has no effect."""
        if self._thread.is_alive():
            with contextlib.suppress(TimeoutError):
                asyncio.run_coroutine_threadsafe(self._table.close(), self._loop).result(CLOSE_S)
            self._end()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CLOSE_S)
        if not self._thread.is_alive():
            self._loop.close()
