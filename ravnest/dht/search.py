"""One search of a node: a lookup that really asks, collects records, and checks all that it is told. Pure.

Records are merged by place, the newest of each. A record that its author did not sign, or of another key, is held
against who sent it, and so is an answer in the name of another node. What this node's rules refuse is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from ravnest.dht.contacts import Contact, may_be_told
from ravnest.dht.core import Core
from ravnest.dht.lookup import Lookup
from ravnest.dht.messages import Find, Found, Message
from ravnest.dht.records import Record, is_signed

NEAREST = 10
"""A search is over when so many nodes, the nearest to the target, have answered."""

REPLICAS = 5
"""Nodes that keep a record: that all of them fail at once, with one node in ten, happens to one record in 100,000."""

MOST_TRIES = 3
"""How often a search begins in all that hears of nobody: all whom a node knows may have lost a datagram at once."""

PAGES_AT_ONCE = 8
MOST_PAGES = 512
"""Further answers for the records of one key, of one node."""


@dataclass
class _Pages:
    """Which records of a node's key are still to be asked for."""

    total: int
    step: int
    taken: set[int] = field(default_factory=set)
    under_way: set[int] = field(default_factory=set)
    asked: int = 0
    first: int = 0
    """All before it are taken."""

    def take(self, skip: int, count: int) -> None:
        self.under_way.discard(skip)
        self.taken.update(range(skip, skip + count))

    def next(self) -> int | None:
        """The number of records to skip in the next request; None when no further one is needed now."""
        if len(self.under_way) >= PAGES_AT_ONCE or self.asked >= MOST_PAGES:
            return None
        promised = {index for skip in self.under_way for index in range(skip, skip + self.step)}
        while self.first in self.taken:
            self.first += 1
        for index in range(self.first, self.total):
            if index not in self.taken and index not in promised:
                self.under_way.add(index)
                self.asked += 1
                return index
        return None


class Search:
    """A search for the nodes nearest to `target`, and for records if they are wanted."""

    def __init__(
        self,
        core: Core,
        target: bytes,
        *,
        on_end: Callable[[Search, float], None],
        records: bool = False,
        thorough: bool = False,
        key: bytes | None = None,
    ) -> None:
        """`key`: whose id the target is; records of other keys are lies. `thorough`: see `GetAsked`."""
        self.target = target
        self.found: dict[tuple[bytes, bytes], Record] = {}
        self.hops: int | None = None
        self.tokens: dict[Contact, bytes] = {}
        self.without: list[Contact] = []
        self.ended = False
        self.complete = False
        self._core = core
        self._on_end = on_end
        self._records = records
        self._thorough = thorough
        self._key = key
        self._pages: dict[Contact, _Pages] = {}
        self._start: list[Contact] = []
        self._tries = 0
        self._heard = False
        self._lookup = Lookup(target, (), count=NEAREST, own_id=core.own_id)

    def begin(self, now_s: float) -> None:
        """Start from the nearest nodes of the own table."""
        table = self._core.table
        table.looked_up(self.target, now_s)
        self._start = table.closest(self.target, 2 * NEAREST)
        self._try(now_s)

    @property
    def requests(self) -> int:
        return self._lookup.requests + sum(pages.asked for pages in self._pages.values())

    def nearest(self, count: int) -> list[Contact]:
        """The nearest nodes that have answered."""
        return self._lookup.nearest_answered(count)

    def hops_to(self, contact: Contact) -> int:
        """How many requests, one after another, led to this node."""
        return self._lookup.hops(contact)

    def go_on(self, now_s: float) -> None:
        """Ask whoever is to be asked now, or end."""
        while not self.ended:
            asked = self._lookup.next()
            if not asked:
                break
            for contact in asked:
                self._ask(contact, now_s)
        if self.ended or not self._lookup.finished or any(one.under_way for one in self._pages.values()):
            return
        if self._start and self._tries < MOST_TRIES and not self._heard:
            self._core.at(now_s + self._core.requests.timeout_s, self._try)
        else:
            self.end(now_s, complete=True)

    def end(self, now_s: float, *, complete: bool = False) -> None:
        """Stop here, with what there is."""
        if not self.ended:
            self.ended, self.complete = True, complete
            self._on_end(self, now_s)

    def _try(self, now_s: float) -> None:
        """Begin from those whom the node knew at first, unless the search was ended meanwhile."""
        self._tries += 1
        self._lookup = Lookup(self.target, self._start, count=NEAREST, own_id=self._core.own_id)
        self.go_on(now_s)

    def _ask(self, contact: Contact, now_s: float, skip: int = 0) -> None:
        core = self._core
        sent = core.requests.ask(
            contact.address,
            lambda nonce: Find(
                nonce=nonce,
                sender=core.own_id,
                listens=core.listens,
                target=self.target,
                records=self._records,
                fresh=self._thorough,
                skip=skip,
            ),
            now_s,
            expects=Found,
            on_answer=partial(self._page_came, contact, skip) if skip else partial(self._answered, contact),
            on_failure=partial(self._failed, contact, skip),
            on_late=partial(self._late, contact),
        )
        if not sent:
            self._give_up(contact, skip)

    def _late(self, contact: Contact, now_s: float) -> None:
        self._lookup.late(contact)
        self.go_on(now_s)

    def _failed(self, contact: Contact, skip: int, now_s: float) -> None:
        self._core.table.failed(contact)
        self._give_up(contact, skip)
        self.go_on(now_s)

    def _give_up(self, contact: Contact, skip: int) -> None:
        if skip:
            self._pages[contact].under_way.discard(skip)
            self._pages[contact].asked = MOST_PAGES  # what this node has is read no further
        else:
            self._lookup.failed(contact)

    def _answered(self, contact: Contact, message: Message, now_s: float) -> None:
        assert isinstance(message, Found)
        core = self._core
        self._heard = True
        if message.sender != contact.id:
            core.table.failed(contact)  # another node has this address now
            self._lookup.failed(contact)
            self.go_on(now_s)
            return
        records = self._valid(contact, message, now_s)
        if records is None:
            self._lied(contact, now_s)
            return
        core.met(contact, now_s)
        self.tokens[contact] = message.token
        named = [one for one in message.contacts if core.reaches(one) and may_be_told(one.ip, contact.ip)]
        self._lookup.answered(contact, named)
        if records:
            self.hops = self.hops or self._lookup.hops(contact)
            pages = self._pages[contact] = _Pages(message.total, len(records))
            pages.take(0, len(records))
            self._read_on(contact, now_s)
        elif self._records:
            self.without.append(contact)
        self.go_on(now_s)

    def _page_came(self, contact: Contact, skip: int, message: Message, now_s: float) -> None:
        assert isinstance(message, Found)
        records = self._valid(contact, message, now_s)
        pages = self._pages[contact]
        pages.take(skip, len(records or ()))
        if records is None:
            self._lied(contact, now_s)
            return
        if not records:
            pages.asked = MOST_PAGES  # it has fewer than it said, as some have expired
        self._read_on(contact, now_s)
        self.go_on(now_s)

    def _read_on(self, contact: Contact, now_s: float) -> None:
        """Ask for the rest of a node's records; when all have come, they may be enough."""
        pages = self._pages[contact]
        while (skip := pages.next()) is not None:
            self._ask(contact, now_s, skip)
        if not pages.under_way and not self._thorough:
            self.end(now_s, complete=True)

    def _valid(self, contact: Contact, message: Found, now_s: float) -> list[Record] | None:
        """The records of an answer, merged into what was found; None when one of them is a lie."""
        if message.records and not self._records:
            return None
        valid = []
        for record in message.records:
            known = self.found.get(record.slot)
            if known != record:
                if record.key != self._key:
                    return None
                if self._core.rules.refusal(record, self._core.identity, now_s) is not None:
                    if not is_signed(record, self._core.identity):
                        return None
                    continue  # it may have expired on its way, or the other's clock or rules differ from ours
                if known is None or record.is_newer_than(known):
                    self.found[record.slot] = record
            valid.append(record)
        return valid

    def _lied(self, contact: Contact, now_s: float) -> None:
        self._core.table.remove(contact)
        self._core.requests.blacklist.lied(contact.address, now_s)
        self._lookup.failed(contact)
        self.go_on(now_s)
