"""What somebody has asked a node to do, from the question to the answer: to join, to get, to store. Pure.

Each has a deadline, at which it answers with what it has. Searches of one node are limited in number; further ones wait
for their turn.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import partial

from ravnest.dht.answering import republish_after
from ravnest.dht.contacts import ID_BITS, ID_BYTES, Address, Contact, distance, key_id
from ravnest.dht.core import Core
from ravnest.dht.events import (
    AnswerGet,
    AnswerJoin,
    AnswerStore,
    Entry,
    EntryStored,
    GetAsked,
    JoinAsked,
    KeyFound,
    StoreAsked,
)
from ravnest.dht.messages import Message, Store, StoreAnswer, batches
from ravnest.dht.records import Record
from ravnest.dht.search import NEAREST, REPLICAS, Search
from ravnest.dht.store import Stored

MOST_SEARCHES = 32
"""Searches under way at a time."""

GREETINGS = 2
"""A peer of which nothing was heard is greeted again: both datagrams of a greeting may have been lost."""

LOCAL_IP = bytes([127, 0, 0, 1])


class Searches:
    """Lets few searches of a node go on at a time, in the order in which they were asked for."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._running: set[Search] = set()
        self._queue: deque[tuple[Search, float]] = deque()
        self._beginning = False

    def begin(
        self,
        target: bytes,
        now_s: float,
        deadline_s: float,
        on_end: Callable[[Search, float], None],
        *,
        key: bytes | None = None,
        thorough: bool = False,
    ) -> None:
        """Search for the nodes nearest to `target`, and with a `key` for its records, until the moment `deadline_s`."""

        def ended(search: Search, ended_s: float) -> None:
            self._running.discard(search)
            on_end(search, ended_s)
            self._go_on(ended_s)

        search = Search(self._core, target, on_end=ended, records=key is not None, thorough=thorough, key=key)
        self._queue.append((search, deadline_s))
        self._go_on(now_s)

    def _go_on(self, now_s: float) -> None:
        if self._beginning:
            return  # a search has ended as soon as it began, and the loop below goes on: hundreds may do so in a row
        self._beginning = True
        try:
            while self._queue and len(self._running) < MOST_SEARCHES:
                search, deadline_s = self._queue.popleft()
                self._running.add(search)
                self._core.at(deadline_s, search.end)
                search.begin(now_s)
        finally:
            self._beginning = False


class JoinCall:
    """Greets the peers, then looks for the own id, and then in the buckets that are farther than the nearest."""

    def __init__(self, core: Core, searches: Searches, asked: JoinAsked) -> None:
        self._core = core
        self._searches = searches
        self._asked = asked
        self._greeted = self._reached = 0
        self._searching = 0
        self._began = self._answered = False

    def begin(self, now_s: float) -> None:
        self._core.at(now_s + self._asked.deadline_s, self._answer)
        for peer in self._asked.peers:
            self._greet(peer, 1, now_s + self._asked.deadline_s, now_s)
        if not self._asked.peers:
            self._answer(now_s)

    def _greet(self, peer: Address, times: int, deadline_s: float, now_s: float) -> None:
        self._core.greet(peer, now_s, partial(self._heard, peer, times, deadline_s))

    def _heard(self, peer: Address, times: int, deadline_s: float, reached: bool, now_s: float) -> None:
        if not reached and times < GREETINGS and now_s < deadline_s and not self._answered:
            self._greet(peer, times + 1, deadline_s, now_s)
            return
        self._greeted += 1
        self._reached += reached
        if reached and not self._began:
            self._began = True
            self._search(self._core.own_id, now_s, deadline_s, partial(self._refresh, deadline_s))
        elif self._greeted == len(self._asked.peers):
            self._end_if_done(now_s)

    def _refresh(self, deadline_s: float, now_s: float) -> None:
        table = self._core.table
        for index in range(table.nearest_bucket() + 1, ID_BITS):
            self._search(table.id_in(index, self._core.draw(ID_BYTES)), now_s, deadline_s, self._end_if_done)
        self._end_if_done(now_s)

    def _search(self, target: bytes, now_s: float, deadline_s: float, then: Callable[[float], None]) -> None:
        self._searching += 1

        def ended(_: Search, ended_s: float) -> None:
            self._searching -= 1
            then(ended_s)

        self._searches.begin(target, now_s, deadline_s, ended)

    def _end_if_done(self, now_s: float) -> None:
        """All that was begun has ended; who has not greeted back by then is not waited for."""
        if not self._searching and (self._began or self._greeted == len(self._asked.peers)):
            self._answer(now_s)

    def _answer(self, _: float) -> None:
        if not self._answered and self._asked.call is not None:
            self._core.out.append(AnswerJoin(self._asked.call, self._reached, len(self._core.table)))
        self._answered = True


class GetCall:
    """Looks for the records of each key."""

    def __init__(self, core: Core, searches: Searches, asked: GetAsked) -> None:
        self._core = core
        self._searches = searches
        self._asked = asked
        self._found: dict[bytes, KeyFound] = {}
        self._keys = tuple(dict.fromkeys(asked.keys))

    def begin(self, now_s: float) -> None:
        for key in self._keys:
            held, _ = self._core.store.find(key_id(key), now_s, fresh=True)
            if held and not self._asked.thorough:
                self._take(key, held, None, now_s)
            else:
                self._searches.begin(
                    key_id(key),
                    now_s,
                    now_s + self._asked.deadline_s,
                    partial(self._ended, key, held),
                    key=key,
                    thorough=self._asked.thorough,
                )
        if not self._keys:
            self._core.out.append(AnswerGet(self._asked.call, {}))

    def _ended(self, key: bytes, held: Sequence[Record], search: Search, now_s: float) -> None:
        self._take(key, held, search, now_s)
        records = list(search.found.values())
        if records and not self._asked.thorough and search.without and len(batches(records)) == 1:
            # The nearest on the way that had none gets a copy, for those who come by next.
            nearest = min(search.without, key=lambda contact: distance(contact.id, search.target))
            put_batches(self._core, nearest, search.tokens[nearest], records, now_s, as_copies=True)

    def _take(self, key: bytes, held: Sequence[Record], search: Search | None, now_s: float) -> None:
        newest = {record.slot: record for record in held}
        for slot, record in search.found.items() if search else ():
            if slot not in newest or record.is_newer_than(newest[slot]):
                newest[slot] = record
        records = [one for one in newest.values() if one.value and one.expires_s > now_s]
        records.sort(key=lambda one: one.issued_s, reverse=True)
        hops = 0 if held else search.hops if search else None
        requests, complete = (search.requests, search.complete) if search else (0, True)
        nearest = tuple(search.nearest(NEAREST)) if search else ()
        self._found[key] = KeyFound(tuple(records), hops, requests, complete, nearest)
        if len(self._found) == len(self._keys):
            self._core.out.append(AnswerGet(self._asked.call, {one: self._found[one] for one in self._keys}))


class Spread:
    """Stores records of one key with the nodes nearest to it, of which this one may be one."""

    def __init__(
        self,
        core: Core,
        searches: Searches,
        records: Sequence[Record],
        on_end: Callable[[EntryStored, float], None],
    ) -> None:
        self._core = core
        self._searches = searches
        self._records = records
        self._on_end = on_end
        self._kept = self._waits = 0
        self._refused: Counter[Stored] = Counter()
        self._ended = False

    def begin(self, now_s: float, deadline_s: float) -> None:
        target = key_id(self._records[0].key)
        self._searches.begin(target, now_s, deadline_s, partial(self._searched, deadline_s))

    def _searched(self, deadline_s: float, search: Search, now_s: float) -> None:
        core = self._core
        nearest = search.nearest(REPLICAS)
        own = distance(core.own_id, search.target)
        if core.listens and (len(nearest) < REPLICAS or own < distance(nearest[-1].id, search.target)):
            nearest = nearest[: REPLICAS - 1]
            republish_s = now_s + republish_after(core.draw)
            kept = [core.store.put(record, LOCAL_IP, now_s, republish_s) for record in self._records]
            self._count(kept)
        hops = max((search.hops_to(contact) for contact in nearest), default=None)
        end = partial(self._end, hops, search.requests)
        for contact in nearest:
            self._waits += 1
            put_batches(core, contact, search.tokens[contact], self._records, now_s, partial(self._answered, end))
        core.at(deadline_s, end)
        if not self._waits:
            end(now_s)

    def _answered(self, end: Callable[[float], None], results: Sequence[Stored], now_s: float) -> None:
        self._waits -= 1
        self._count(results)
        if not self._waits:
            end(now_s)

    def _count(self, results: Sequence[Stored]) -> None:
        refused = [one for one in results if one not in {Stored.KEPT, Stored.SAME}]
        self._refused.update(refused)
        self._kept += bool(results) and not refused

    def _end(self, hops: int | None, requests: int, now_s: float) -> None:
        if not self._ended:
            self._ended = True
            self._on_end(EntryStored(self._kept, dict(self._refused), hops, requests), now_s)


class StoreCall:
    """Stores signed entries, those of one key together."""

    def __init__(
        self, core: Core, searches: Searches, asked: StoreAsked, sign: Callable[[Entry, float], Record]
    ) -> None:
        """`sign`: makes the record of an entry."""
        self._core = core
        self._searches = searches
        self._asked = asked
        self._sign = sign
        self._stored: dict[bytes, EntryStored] = {}
        self._waits = 0

    def begin(self, now_s: float) -> None:
        by_key: dict[bytes, list[Record]] = {}
        for entry in self._asked.entries:
            by_key.setdefault(entry.key, []).append(self._sign(entry, now_s))
        self._waits = len(by_key)
        for key, records in by_key.items():
            spread = Spread(self._core, self._searches, records, partial(self._ended, key))
            spread.begin(now_s, now_s + self._asked.deadline_s)
        if not by_key:
            self._core.out.append(AnswerStore(self._asked.call, ()))

    def _ended(self, key: bytes, stored: EntryStored, _: float) -> None:
        self._stored[key] = stored
        self._waits -= 1
        if not self._waits:
            stored_of = tuple(self._stored[entry.key] for entry in self._asked.entries)
            self._core.out.append(AnswerStore(self._asked.call, stored_of))


def put_batches(
    core: Core,
    contact: Contact,
    token: bytes,
    records: Sequence[Record],
    now_s: float,
    on_end: Callable[[Sequence[Stored], float], None] = lambda _, __: None,
    *,
    as_copies: bool = False,
) -> None:
    """Ask a node to keep records, message by message. `on_end`: what became of each; empty when there is no answer."""
    groups = batches(records)
    results: list[Stored] = []

    def send(at: int, sent_s: float) -> None:
        def answered(message: Message, answered_s: float) -> None:
            assert isinstance(message, StoreAnswer)
            results.extend(message.results)
            if at + 1 == len(groups):
                on_end(results, answered_s)
            else:
                send(at + 1, answered_s)

        def failed(failed_s: float) -> None:
            core.table.failed(contact)
            on_end((), failed_s)

        asked = core.requests.ask(
            contact.address,
            lambda nonce: Store(
                nonce=nonce,
                sender=core.own_id,
                listens=core.listens,
                token=token,
                records=groups[at],
                as_copies=as_copies,
            ),
            sent_s,
            expects=StoreAnswer,
            on_answer=answered,
            on_failure=failed,
        )
        if not asked:
            on_end((), sent_s)

    send(0, now_s)
