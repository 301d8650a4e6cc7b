"""The routing table: k-buckets of contacts that have proven their ids, with replacement caches. Pure.

Bucket i holds nodes at a distance from 2^i up to 2^(i+1). A full bucket keeps whom it knows, since who has been there
for long is likely to stay (Maymounkov & Mazières 2002, section 2.4); newcomers wait in the bucket's replacement cache
and take the place of one that has failed to answer. Few contacts come from one network, so that one person with many
addresses of it cannot fill a table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from ravnest.dht.contacts import ID_BITS, Contact, network_of, number

BUCKET_CONTACTS = 20
"""k: so many nodes that it is unlikely that all of them fail within an hour."""

SPARE_CONTACTS = 10
"""Newcomers that wait for a place in one full bucket."""

NETWORK_IN_BUCKET = 2
NETWORK_IN_TABLE = 10
"""Contacts of one network, in one bucket and in the whole table. Local addresses are not counted."""

MOST_FAILURES = 2
"""Requests in a row that a contact may leave unanswered before it goes. It goes at the first when a spare waits."""

QUESTIONABLE_S = 900.0
"""After so long without a sign of life the oldest contact of a full bucket is asked whether it is still there."""

REFRESH_S = 3600.0
"""A bucket in which nothing was looked up for so long is refreshed by a lookup of an id in its range."""


@dataclass(slots=True)
class Entry:
    contact: Contact
    number: int
    seen_s: float
    failures: int = 0


@dataclass(slots=True)
class Bucket:
    """`entries` and `spares` by id, in the order in which they were seen, the latest last."""

    entries: dict[bytes, Entry] = field(default_factory=dict)
    spares: dict[bytes, Entry] = field(default_factory=dict)
    looked_up_s: float = 0.0


class RoutingTable:
    """The contacts of the node `own_id`."""

    def __init__(self, own_id: bytes, bucket_contacts: int = BUCKET_CONTACTS) -> None:
        self._own_id = own_id
        self._own = number(own_id)
        self._most = bucket_contacts
        self._buckets: dict[int, Bucket] = {}
        self._networks: Counter[bytes] = Counter()

    def __len__(self) -> int:
        return sum(len(bucket.entries) for bucket in self._buckets.values())

    def contacts(self) -> Iterator[Contact]:
        """All contacts; spares are none."""
        for bucket in self._buckets.values():
            for entry in bucket.entries.values():
                yield entry.contact

    def bucket_sizes(self) -> dict[int, tuple[int, int]]:
        """Bucket → how many contacts and spares it has."""
        return {index: (len(one.entries), len(one.spares)) for index, one in sorted(self._buckets.items())}

    def holds(self, contact: Contact) -> bool:
        """Whether this node is a contact, or a spare, at this address."""
        bucket = self._buckets.get(self._index(contact.id))
        entry = None if bucket is None else bucket.entries.get(contact.id) or bucket.spares.get(contact.id)
        return entry is not None and entry.contact == contact

    def wants(self, contact: Contact) -> bool:
        """Whether the contact would find a place, so that it is worth while to let it prove its id."""
        if contact.id == self._own_id or self.holds(contact):
            return False
        bucket = self._buckets.get(self._index(contact.id))
        if bucket is None:
            return self._network_allows(contact, None)
        known = bucket.entries.get(contact.id)
        if known is not None:
            return known.failures > 0  # it has moved, if the address that was known no longer answers
        has_room = len(bucket.entries) < self._most or len(bucket.spares) < SPARE_CONTACTS
        return has_room and self._network_allows(contact, bucket)

    def add(self, contact: Contact, now_s: float) -> Contact | None:
        """Take in a contact that has proven its id and its address.

        Returns who should be asked for a sign of life, since its place is wanted and it has been silent for long.
        """
        if not self.wants(contact):
            self.seen(contact, now_s)
            return None
        bucket = self._buckets.setdefault(self._index(contact.id), Bucket(looked_up_s=now_s))
        if contact.id in bucket.entries:
            self._forget(bucket.entries.pop(contact.id))
        entry = Entry(contact, number(contact.id), now_s)
        if len(bucket.entries) < self._most:
            self._place(bucket, entry)
            return None
        bucket.spares[contact.id] = entry
        oldest = next(iter(bucket.entries.values()))
        return oldest.contact if now_s - oldest.seen_s > QUESTIONABLE_S else None

    def seen(self, contact: Contact, now_s: float) -> None:
        """The contact has answered, or has sent something from its address."""
        bucket = self._buckets.get(self._index(contact.id))
        if bucket is None:
            return
        for entries in (bucket.entries, bucket.spares):
            entry = entries.get(contact.id)
            if entry is not None and entry.contact == contact:
                entry.seen_s, entry.failures = now_s, 0
                entries[contact.id] = entries.pop(contact.id)

    def failed(self, contact: Contact) -> None:
        """The contact has left a request unanswered."""
        bucket = self._buckets.get(self._index(contact.id))
        if bucket is None:
            return
        spare = bucket.spares.get(contact.id)
        if spare is not None and spare.contact == contact:
            del bucket.spares[contact.id]
        entry = bucket.entries.get(contact.id)
        if entry is None or entry.contact != contact:
            return
        entry.failures += 1
        if entry.failures >= MOST_FAILURES or bucket.spares:
            self._forget(bucket.entries.pop(contact.id))
            self._promote(bucket)

    def remove(self, contact: Contact) -> None:
        """The contact has said what no honest node says."""
        bucket = self._buckets.get(self._index(contact.id))
        if bucket is None:
            return
        bucket.spares.pop(contact.id, None)
        entry = bucket.entries.pop(contact.id, None)
        if entry is not None:
            self._forget(entry)
            self._promote(bucket)

    def closest(self, target: bytes, count: int) -> list[Contact]:
        """The `count` contacts nearest to an id, the nearest first; who has failed comes only where others lack."""
        aim = number(target)
        good: list[Contact] = []
        doubtful: list[Entry] = []
        for group in self._groups(aim):
            entries = [entry for entry in group if not entry.failures]
            if len(entries) < len(group):
                doubtful += [entry for entry in group if entry.failures]
            entries.sort(key=lambda entry: entry.number ^ aim)
            good += [entry.contact for entry in entries]
            if len(good) >= count:
                return good[:count]
        doubtful.sort(key=lambda entry: entry.number ^ aim)
        return good + [entry.contact for entry in doubtful[: count - len(good)]]

    def looked_up(self, target: bytes, now_s: float) -> None:
        """A lookup of `target` begins: its bucket needs no refresh for a while."""
        bucket = self._buckets.get(self._index(target))
        if bucket is not None:
            bucket.looked_up_s = now_s

    def stale_buckets(self, now_s: float) -> list[int]:
        """Buckets in which nothing was looked up for long."""
        return [index for index, one in sorted(self._buckets.items()) if now_s - one.looked_up_s >= REFRESH_S]

    def id_in(self, index: int, random: bytes) -> bytes:
        """An id in the range of bucket `index`, made of random bytes."""
        low = number(random) & ((1 << index) - 1)
        return (self._own ^ (1 << index) ^ low).to_bytes(len(self._own_id), "big")

    def nearest_bucket(self) -> int:
        """The bucket nearest to this node that has contacts; ID_BITS when there is none."""
        return min((index for index, one in self._buckets.items() if one.entries), default=ID_BITS)

    def _groups(self, aim: int) -> Iterator[list[Entry]]:
        """All entries, in groups: each of a group is nearer to `aim` than any of the next group."""
        index = (self._own ^ aim).bit_length() - 1
        if index in self._buckets:
            yield list(self._buckets[index].entries.values())
        yield [entry for below, one in self._buckets.items() if below < index for entry in one.entries.values()]
        for above in sorted(one for one in self._buckets if one > index):
            yield list(self._buckets[above].entries.values())

    def _index(self, one: bytes) -> int:
        return (self._own ^ number(one)).bit_length() - 1

    def _network_allows(self, contact: Contact, bucket: Bucket | None) -> bool:
        network = network_of(contact.ip)
        if network is None:
            return True
        in_bucket = 0
        if bucket is not None:
            everyone = [*bucket.entries.values(), *bucket.spares.values()]
            in_bucket = sum(network_of(entry.contact.ip) == network for entry in everyone)
        return in_bucket < NETWORK_IN_BUCKET and self._networks[network] < NETWORK_IN_TABLE

    def _place(self, bucket: Bucket, entry: Entry) -> None:
        bucket.entries[entry.contact.id] = entry
        network = network_of(entry.contact.ip)
        if network is not None:
            self._networks[network] += 1

    def _forget(self, entry: Entry) -> None:
        network = network_of(entry.contact.ip)
        if network is not None:
            self._networks[network] -= 1
            if not self._networks[network]:
                del self._networks[network]

    def _promote(self, bucket: Bucket) -> None:
        """The spare that was seen last takes the free place, if its network allows."""
        while bucket.spares and len(bucket.entries) < self._most:
            _, spare = bucket.spares.popitem()
            network = network_of(spare.contact.ip)
            if network is None or self._networks[network] < NETWORK_IN_TABLE:
                self._place(bucket, spare)
