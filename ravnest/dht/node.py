"""A node of the hash table: one sans-I/O machine, for the real network and for the virtual clock.

In: the events of dht/events.py, with the time in seconds since 1970. Out: its instructions. It joins through any of
several peers, answers others, takes into its table only nodes that have proven their ids, renews what it stored,
and passes on what it keeps as nodes come and go.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from ravnest.dht.answering import REPUBLISH_S
from ravnest.dht.calls import GetCall, JoinCall, Searches, Spread, StoreCall
from ravnest.dht.contacts import ID_BYTES, Address, Contact
from ravnest.dht.core import Core
from ravnest.dht.events import (
    Entry,
    EntryStored,
    Event,
    GetAsked,
    Instruction,
    JoinAsked,
    MessageArrived,
    Send,
    StoreAsked,
    TimePassed,
)
from ravnest.dht.messages import Find, Ping, Request, Store
from ravnest.dht.records import Identity, Record, Rules, signed_record
from ravnest.dht.store import StoreLimits

MAINTENANCE_S = 60.0
"""How often a node looks after its table and its records."""

REJOIN_S = 10.0
"""How often a node that knows nobody any more tries to join again."""

MOST_REPUBLISHED = 64
"""Keys that are passed on in one maintenance."""

SEARCH_DEADLINE_S = 30.0
"""Of searches that nobody has asked for: refreshes, renewals, and what is passed on."""

RENEWED_AFTER = 1 / 3
"""The part of its lifetime after which an entry is stored anew."""

RENEWED_EARLY = 1 / 12
"""The part of its lifetime by which it may be stored earlier, with others of its key: that takes one search."""

MOST_TOGETHER = 64
"""Entries that are renewed by one search; they are sent message by message."""


@dataclass(frozen=True)
class Health:
    """The state of a node, in numbers. buckets: bucket → how many contacts it has, and how many wait for a place."""

    id: bytes
    contacts: int
    buckets: dict[int, tuple[int, int]]
    records: int
    keys: int
    record_bytes: int
    refused_records: int
    renewed_entries: int
    requests_sent: int
    requests_failed: int
    round_trip_s: float | None
    blocked: int


class HashTableNode:
    """`handle` takes an event and returns what is to be done; at `wakes_s` it wants a TimePassed."""

    def __init__(
        self,
        identity: Identity,
        draw: Callable[[int], bytes],
        *,
        listens: bool = True,
        rules: Rules | None = None,
        limits: StoreLimits | None = None,
        ip_bytes: frozenset[int] = frozenset({4, 16}),
    ) -> None:
        """`draw`: makes so many random bytes that nobody can guess. `listens`: False for a node that can only open
        connections outwards; it keeps nothing and nobody asks it. `ip_bytes`: the lengths of the addresses that it can
        send to; whoever has only others is not asked."""
        self._core = Core(identity, draw, listens=listens, rules=rules or Rules(), limits=limits, ip_bytes=ip_bytes)
        self._searches = Searches(self._core)
        self._peers: tuple[Address, ...] = ()
        self._renewed: dict[bytes, dict[bytes, tuple[Entry, float]]] = {}
        """By key and subkey: what is renewed, and when."""
        self._renews_s: dict[bytes, float] = {}
        """By key: when the first of these is due."""
        self._issued_s = 0.0
        self._started = False

    @property
    def id(self) -> bytes:
        return self._core.own_id

    @property
    def wakes_s(self) -> float | None:
        """When TimePassed is to be handled; None when nothing waits."""
        return self._core.wakes_s

    def know(self, contacts: Sequence[Contact], now_s: float) -> None:
        """Take contacts in as if they had proven their ids: for simulations of tables too large to join one by one."""
        for contact in contacts:
            self._core.table.add(contact, now_s)

    def contacts(self) -> list[Contact]:
        """Whom this node knows."""
        return list(self._core.table.contacts())

    def health(self, now_s: float) -> Health:
        """How the node is."""
        core = self._core
        return Health(
            id=core.own_id,
            contacts=len(core.table),
            buckets=core.table.bucket_sizes(),
            records=len(core.store),
            keys=core.store.keys(),
            record_bytes=core.store.bytes,
            refused_records=core.answers.refused,
            renewed_entries=sum(map(len, self._renewed.values())),
            requests_sent=core.requests.sent,
            requests_failed=core.requests.failed,
            round_trip_s=core.requests.round_trip_s,
            blocked=core.requests.blacklist.blocked(now_s),
        )

    def handle(self, event: Event, now_s: float) -> list[Instruction]:
        """Take an event in, and return what is to be done, in this order.

        Raises InvalidInput when an entry is too long, or lives too long; nothing of its call is stored then.
        """
        core = self._core
        if not self._started:
            self._started = True
            core.at(now_s + MAINTENANCE_S, self._maintain)
            core.at(now_s + REJOIN_S, self._rejoin)
        match event:
            case MessageArrived(sender, message):
                if core.requests.blacklist.is_unheard(sender, now_s):
                    pass
                elif isinstance(message, Request):
                    self._answer(sender, message, now_s)
                else:
                    core.requests.arrived(sender, message, now_s)
            case TimePassed():
                core.pass_time(now_s)
            case JoinAsked():
                self._peers = event.peers or self._peers
                JoinCall(core, self._searches, event).begin(now_s)
            case GetAsked():
                GetCall(core, self._searches, event).begin(now_s)
            case StoreAsked():
                StoreCall(core, self._searches, event, self._signed).begin(now_s)
                for entry in event.entries:
                    self._renew_later(entry, now_s)
        done = core.out[:]
        core.out.clear()
        return done

    def _answer(self, sender: Address, asked: Request, now_s: float) -> None:
        core = self._core
        if asked.sender == core.own_id:
            return
        match asked:
            case Ping() if core.listens:
                core.out.append(Send(sender, core.answers.to_ping(asked)))
            case Find() if core.listens:
                core.out.append(Send(sender, core.answers.to_find(asked, sender, now_s)))
            case Store() if core.listens:
                core.out.append(Send(sender, core.answers.to_store(asked, sender, now_s)))
        if asked.listens:
            core.met(Contact(asked.sender, sender.ip, sender.port), now_s)

    def _signed(self, entry: Entry, now_s: float) -> Record:
        """The record of an entry. Each counts more than those that this node signed before."""
        self._issued_s = max(now_s, self._issued_s + 1e-3)
        return signed_record(
            self._core.identity,
            entry.key,
            entry.subkey,
            entry.value,
            issued_s=self._issued_s,
            lifetime_s=entry.lifetime_s,
        )

    def _renew_later(self, entry: Entry, now_s: float) -> None:
        """Renew this entry from now on if it says so, and no longer what was stored in its place before."""
        of_key = self._renewed.setdefault(entry.key, {})
        of_key.pop(entry.subkey, None)
        if entry.renewed and entry.value:
            of_key[entry.subkey] = entry, now_s + RENEWED_AFTER * entry.lifetime_s
        self._wait_to_renew(entry.key, now_s)

    def _wait_to_renew(self, key: bytes, now_s: float) -> None:
        of_key = self._renewed[key]
        if not of_key:
            del self._renewed[key]
            self._renews_s.pop(key, None)
            return
        first_s = min(due_s for _, due_s in of_key.values())
        known_s = self._renews_s.get(key)
        if known_s is None or first_s < known_s:
            self._renews_s[key] = first_s
            self._core.at(first_s, partial(self._renew, key, first_s))

    def _renew(self, key: bytes, at_s: float, now_s: float) -> None:
        if self._renews_s.get(key) != at_s:
            return  # another time has come before it, or nothing of this key is renewed any more
        del self._renews_s[key]
        of_key = self._renewed[key]
        due = [one for one, due_s in of_key.values() if due_s <= now_s + RENEWED_EARLY * one.lifetime_s]
        for entry in due:
            of_key[entry.subkey] = entry, now_s + RENEWED_AFTER * entry.lifetime_s
        for start in range(0, len(due), MOST_TOGETHER):
            self._spread([self._signed(entry, now_s) for entry in due[start : start + MOST_TOGETHER]], now_s)
        self._wait_to_renew(key, now_s)

    def _rejoin(self, now_s: float) -> None:
        core = self._core
        core.at(now_s + REJOIN_S, self._rejoin)
        if not len(core.table) and (self._peers or core.remembered):
            peers = tuple(dict.fromkeys([*self._peers, *core.remembered]))
            JoinCall(core, self._searches, JoinAsked(None, peers, REJOIN_S)).begin(now_s)

    def _maintain(self, now_s: float) -> None:
        core = self._core
        core.at(now_s + MAINTENANCE_S, self._maintain)
        core.store.expire(now_s)
        for index in core.table.stale_buckets(now_s):
            target = core.table.id_in(index, core.draw(ID_BYTES))
            self._searches.begin(target, now_s, now_s + SEARCH_DEADLINE_S, lambda _, __: None)
        due: dict[bytes, list[Record]] = {}
        for held in core.store.replicas():
            if held.republish_s <= now_s and (held.record.key in due or len(due) < MOST_REPUBLISHED):
                due.setdefault(held.record.key, []).append(held.record)
                held.republish_s = now_s + REPUBLISH_S
        for records in due.values():
            self._spread(records, now_s)

    def _spread(self, records: list[Record], now_s: float) -> None:
        def ended(_: EntryStored, __: float) -> None:
            """Nobody has asked; the next maintenance or renewal tries again."""

        Spread(self._core, self._searches, records, ended).begin(now_s, now_s + SEARCH_DEADLINE_S)
