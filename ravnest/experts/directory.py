"""Which experts are hosted where, as a caller knows it: what the hash table says, kept for a while.

In: a node of the table, and the gate's scores. Out: experts and their hosts, by beam search. What is known of a prefix
is used for `FRESH_S`; for `STALE_S` more it is used while it is read again, so that a caller waits for the table only
at first and after long pauses. Of a prefix that is not known the first node with records is taken at its word, which
takes a third of the time, and the next search reads it thoroughly meanwhile. All state has one lock; nobody waits while
holding it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass

from ravnest.dht import HashTable
from ravnest.experts.announcements import TABLE_S
from ravnest.experts.beam_search import BeamSearch
from ravnest.experts.grid import Claim, Dated, Expert, Grid, HostNews, still_known
from ravnest.experts.known_members import address_of
from ravnest.experts.table_thread import TableThread
from ring_allreduce.transport import PeerAddress

FRESH_S = 3.0
STALE_S = 12.0
HOSTS_EVERY_S = 2.0
"""Between two looks at the list of hosts."""


@dataclass(frozen=True)
class _Known:
    at_s: float
    behind: frozenset[int]
    claims: Mapping[Expert, Dated[Claim]]


class Directory:
    """The knowledge of one caller."""

    def __init__(self, table: TableThread, grid: Grid, changed: Callable[[], None]) -> None:
        """`changed` is called, from the table's thread, when the hosts have changed."""
        self._table, self._grid, self._changed = table, grid, changed
        self._lock = threading.Lock()
        self._known: dict[Expert, _Known] = {}
        self._reading: dict[Expert, Future[None]] = {}
        self._hosts: dict[str, PeerAddress] = {}
        self._news: tuple[HostNews, ...] = ()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._follow_hosts, name="experts' hosts", daemon=True)
        self._thread.start()

    @property
    def hosts(self) -> Mapping[str, PeerAddress]:
        """Where the hosts listen: a new mapping whenever it has changed."""
        return self._hosts

    @property
    def news(self) -> tuple[HostNews, ...]:
        """What the hosts last said of themselves."""
        return self._news

    def find(self, search: BeamSearch, usable: Collection[str]) -> list[list[tuple[Expert, str]]]:
        """Go through a search; returns the best experts that one of the `usable` hosts has, and their hosts."""
        hosts: dict[Expert, str] = {}
        while search.wanted:
            known = self._read(search.wanted)
            behind: dict[Expert, Collection[int]] = {}
            for prefix, one in known.items():
                if len(prefix) + 1 == len(self._grid.sides):
                    there = {
                        expert: claim.value.member
                        for expert, claim in one.claims.items()
                        if claim.value.member in usable
                    }
                    hosts.update(there)
                    behind[prefix] = [expert[-1] for expert in there]
                else:
                    behind[prefix] = one.behind
            search.arrived(behind)
        return [[(expert, hosts[expert]) for expert in found] for found in search.found()]

    def count(self, usable: Collection[str]) -> int:
        """How many experts the usable hosts have, read from the table anew."""
        level: list[Expert] = [()]
        for _ in self._grid.sides[:-1]:
            known = self._read(level, fresh_s=0.5)
            level = [(*prefix, one) for prefix in level for one in known[prefix].behind]
        known = self._read(level, fresh_s=0.5)
        return sum(claim.value.member in usable for one in known.values() for claim in one.claims.values())

    def forget(self, expert: Expert) -> None:
        """A host says that it has this expert no longer: read again what leads to it."""
        with self._lock:
            self._known.pop(expert[:-1], None)

    def close(self) -> None:
        """Follow the hosts no longer."""
        self._stopped.set()
        self._thread.join(TABLE_S)

    def _read(self, prefixes: Collection[Expert], fresh_s: float = FRESH_S) -> dict[Expert, _Known]:
        now_s = time.monotonic()
        with self._lock:
            old = [p for p in prefixes if p not in self._known or now_s - self._known[p].at_s > fresh_s]
            new = [prefix for prefix in old if prefix not in self._reading]
            begun: Future[None] = Future()
            self._reading.update(dict.fromkeys(new, begun))
            most_s = STALE_S if fresh_s == FRESH_S else fresh_s
            waited_for = {self._reading[p] for p in old if p not in self._known or now_s - self._known[p].at_s > most_s}
            thorough = any(prefix in self._known for prefix in new)
        if new:  # without the lock, which the reading takes
            reading = self._table.run(lambda node: self._get(node, new, thorough=thorough))
            reading.add_done_callback(lambda _: begun.set_result(None))
        for future in waited_for:
            with contextlib.suppress(TimeoutError):  # then nothing is known of it, as of what nobody hosts
                future.result(2 * TABLE_S)
        with self._lock:
            unknown = _Known(now_s, frozenset(), {})
            return {prefix: self._known.get(prefix, unknown) for prefix in prefixes}

    async def _get(self, node: HashTable, prefixes: Sequence[Expert], *, thorough: bool) -> None:
        keys = {self._grid.prefix_key(prefix): prefix for prefix in prefixes}
        try:
            found = await node.get_many(list(keys), thorough=thorough, deadline_s=TABLE_S)
            # What is known from one node may be used at once, and is to be read again by the next who needs it.
            now_s = time.monotonic() if thorough else time.monotonic() - FRESH_S
            with self._lock:
                for key, prefix in keys.items():
                    last = len(prefix) + 1 == len(self._grid.sides)
                    claims = self._grid.claims(prefix, found[key].records, self._hosts) if last else {}
                    behind = set() if last else self._grid.next_coordinates(prefix, found[key].records, self._hosts)
                    old = self._known.get(prefix)
                    if old is not None:
                        claims = still_known(old.claims, claims, time.time())
                    self._known[prefix] = _Known(now_s, frozenset(behind), claims)
        finally:
            with self._lock:
                for prefix in prefixes:
                    self._reading.pop(prefix, None)

    def _follow_hosts(self) -> None:
        dated: dict[str, Dated[HostNews]] = {}
        while True:
            found = self._table.run(lambda node: node.get(self._grid.hosts_key, thorough=True, deadline_s=TABLE_S))
            try:
                records = found.result(2 * TABLE_S).records
            except (TimeoutError, CancelledError):  # the latter where the table's node was closed meanwhile
                records = None
            if records is not None:
                news = self._grid.members(records, HostNews)
                dated = still_known(dated, news, time.time())
                self._news = tuple(one.value for one in dated.values())
                hosts = {one.at.member: address_of(one.at) for one in self._news}
                if hosts != self._hosts:
                    with self._lock:  # what was read before has left out what new hosts say
                        if hosts.keys() - self._hosts.keys():
                            self._known.clear()
                        self._hosts = hosts
                    self._changed()
            if self._stopped.wait(HOSTS_EVERY_S):
                return
