"""Calls experts wherever they are hosted: finds their hosts in the hash table, sends, and waits no longer than it must.

In: calls with tensors, from any thread. Out: futures of answers or failures. One thread owns the endpoint and all that
is known of hosts (calls.py); what other threads ask comes to it through a queue.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace

from cluster_planner import format_count
from ravnest.dht import KeyIdentity, new_identity
from ravnest.errors import ExpertsUnavailable, InvalidInput
from ravnest.experts.announcements import caller_entry, member_withdrawal
from ravnest.experts.batch_calls import Caller
from ravnest.experts.beam_search import BeamSearch
from ravnest.experts.calls import Answered, Call, Calls, Failed
from ravnest.experts.config import ExpertsConfig
from ravnest.experts.directory import Directory
from ravnest.experts.grid import Expert, member_name
from ravnest.experts.known_members import listens_at, members_endpoint
from ravnest.experts.table_thread import TableThread
from ring_allreduce.transport import Endpoint

POLL_S = 0.25
CLOSE_S = 5.0
WAIT_STEP_S = 0.1


class ExpertsClient(Caller):
    """One caller. Its methods may be called from any thread. Copies of a module share it."""

    def __init__(
        self,
        config: ExpertsConfig,
        table: TableThread,
        endpoint: Endpoint,
        token: bytes,
    ) -> None:
        """Use `opened`, or give all: the endpoint is named as grid.member_name says, with the codec of messages.py."""
        self.config = config
        self._endpoint, self._table = endpoint, table
        self._asked: queue.SimpleQueue[tuple[Call, Future[Answered | Failed]]] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._calls = Calls(config, endpoint)
        grid = replace(config.places, token=token)
        self.directory = Directory(table, grid, endpoint.wake)
        own = listens_at(endpoint, grid.proof_of(table.public_key))
        self._announced = table.run(lambda node: node.store(caller_entry(config.places, own)))
        self._thread = threading.Thread(target=self._run, name="experts", daemon=True)
        self._thread.start()

    @classmethod
    def opened(
        cls,
        config: ExpertsConfig,
        peers: Sequence[str],
        *,
        token: bytes,
        host: str = "127.0.0.1",
        label: str = "caller",
        identity: KeyIdentity | None = None,
    ) -> ExpertsClient:
        """Join the table through any of `peers` ("host:port"), and listen at `host`, this machine's address as the
        hosts of experts reach it. `token`: 16 bytes that all members share. Raises InvalidInput, TableUnreachable,
        TransportError.
        """
        if not peers:
            raise InvalidInput("expected the address of a node of the table, as HOST:PORT", key="peers")
        identity = identity or new_identity()
        name = member_name(label, identity.public_key)
        table = TableThread(None, peers, identity, outwards_only=True)
        try:
            endpoint = members_endpoint(name, identity, token, config.name, host)
        except BaseException:
            table.close()
            raise
        return cls(config, table, endpoint, token)

    def __deepcopy__(self, memo: object) -> ExpertsClient:
        return self

    def call(self, calls: Sequence[Call]) -> list[Future[Answered | Failed]]:
        """Send calls, all at the same time. Each future has its result at its deadline at the latest."""
        futures: list[Future[Answered | Failed]] = []
        for call in calls:
            future: Future[Answered | Failed] = Future()
            futures.append(future)
            self._asked.put((call, future))
        if self._closing.is_set():  # the thread may have looked into the queue for the last time
            self._fail_asked()
        self._endpoint.wake()
        return futures

    def usable(self) -> frozenset[str]:
        """The hosts that answer this caller, those that are left alone for a while excepted."""
        return self._calls.usable(time.monotonic())

    def find(self, search: BeamSearch) -> list[list[tuple[Expert, str]]]:
        """The best experts of each sample that a usable host has, and their hosts. Raises ExpertsUnavailable once it is
        closed."""
        if self._closing.is_set():
            raise ExpertsUnavailable(f"the client that asks the experts of {self.config.name!r} is closed")
        return self.directory.find(search, self.usable())

    def wait_for_experts(self, count: int, timeout_s: float = 60.0) -> None:
        """Wait until so many experts can be called. Raises ExpertsUnavailable when they cannot in time."""
        deadline_s, found = time.monotonic() + timeout_s, 0
        while time.monotonic() < deadline_s:
            found = self.directory.count(self.usable())
            if found >= count:
                return
            time.sleep(WAIT_STEP_S)
        named, usable = len(self.directory.hosts), len(self.usable())
        seen = f"of {format_count(named, 'host')} in the table {usable} answer"
        raise ExpertsUnavailable(
            f"{found} experts of {self.config.name!r} can be called, {count} were expected within {timeout_s:g} s: "
            + (seen if named else "the table names no host (have all the same token, and clocks that agree?)")
        )

    def answer_times(self) -> Mapping[str, float | None]:
        """The mean time of an answer by host, None before the first."""
        return self._calls.answer_times()

    def close(self) -> None:
        """Withdraw from the table and stop; what waits has failed. A second call has no effect."""
        if not self._closing.is_set():
            self._closing.set()
            self._endpoint.wake()
            self._thread.join(CLOSE_S)
            entry = member_withdrawal(self.config.places.callers_key, self._endpoint.name)
            withdrawn = self._table.run(lambda node: node.store(entry, deadline_s=CLOSE_S))
            with contextlib.suppress(TimeoutError):  # then the record expires by itself
                withdrawn.result(2 * CLOSE_S)
            self.directory.close()
            self._table.close()

    # The thread.

    def _run(self) -> None:
        calls = self._calls
        try:
            while not self._closing.is_set():
                now_s = time.monotonic()
                calls.meet(self.directory.hosts, now_s)
                with contextlib.suppress(queue.Empty):  # never waits: call() may empty the queue, too
                    while True:
                        calls.send(*self._asked.get_nowait(), time.monotonic())
                calls.fail_late(time.monotonic())
                wait_s = POLL_S if calls.due_s is None else min(calls.due_s - time.monotonic(), POLL_S)
                for delivery in self._endpoint.poll(max(0.0, wait_s)):
                    gone = calls.take(delivery, time.monotonic())
                    if gone is not None:
                        self.directory.forget(gone)
        finally:
            self._closing.set()
            calls.fail_all()
            self._fail_asked()
            self._endpoint.close()

    def _fail_asked(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                self._asked.get_nowait()[1].set_result(Failed("closed"))
