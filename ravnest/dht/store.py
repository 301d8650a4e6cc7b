"""What a node keeps for others, within bounds that no stranger can move. Pure.

Replicas are records that were stored with this node because it is near to their key. Copies are what a reader left on
the way: they end soon and go first when room is needed. Of replicas the one whose key is farthest from this node goes
first, since others are asked for it before this node is. What one network may fill is a part of the whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from heapq import heapify, heappop, heappush

from ravnest.dht.contacts import distance, key_id, network_of
from ravnest.dht.records import Record

COPY_S = 30.0
"""The most that a copy on the way is kept: for so long a reader may see what is no longer the newest."""


class Stored(IntEnum):
    """What became of a record that somebody wanted to store. All but KEPT and SAME are refusals."""

    KEPT = 0
    SAME = 1
    OLDER = 2
    INVALID = 3
    FULL = 4
    NO_TOKEN = 5


@dataclass(frozen=True)
class StoreLimits:
    """`part_of_network`: the part of all bytes, and of the records of one key, that one network may take."""

    most_bytes: int = 64 * 2**20
    key_records: int = 4096
    copies_part: float = 0.25
    part_of_network: float = 0.125


@dataclass(slots=True)
class Held:
    record: Record
    place: bytes
    network: bytes | None
    is_copy: bool
    ends_s: float
    republish_s: float
    """When this node stores it again with the nearest nodes, unless another one does so before."""


class RecordStore:
    """The records that the node `own_id` keeps."""

    def __init__(self, own_id: bytes, limits: StoreLimits | None = None) -> None:
        self._own_id = own_id
        self._limits = limits or StoreLimits()
        self._held: dict[bytes, dict[tuple[bytes, bytes], Held]] = {}
        self._ends: list[tuple[float, bytes, tuple[bytes, bytes]]] = []
        self._farthest: list[tuple[int, bytes]] = []
        self._by_network: Counter[bytes] = Counter()
        self._records = 0
        self._copies_bytes = 0
        self.bytes = 0

    def __len__(self) -> int:
        return self._records

    def replicas(self) -> Iterator[Held]:
        """All that is no copy."""
        return (held for slots in self._held.values() for held in slots.values() if not held.is_copy)

    def keys(self) -> int:
        return len(self._held)

    def find(self, place: bytes, now_s: float, *, fresh: bool = False) -> tuple[list[Record], bool]:
        """The records whose key has the id `place`, in an order that stays, and whether copies are among them.

        `fresh`: without the copies.
        """
        slots = self._held.get(place)
        if not slots:
            return [], False
        held = [one for one in slots.values() if one.ends_s > now_s and not (fresh and one.is_copy)]
        held.sort(key=lambda one: one.record.slot)
        return [one.record for one in held], any(one.is_copy for one in held)

    def put(self, record: Record, ip: bytes, now_s: float, republish_s: float, *, as_copy: bool = False) -> Stored:
        """Keep a record that is valid and came from `ip`; `republish_s`: see Held."""
        place = key_id(record.key)
        slots = self._held.get(place, {})
        held = slots.get(record.slot)
        if held is not None and held.ends_s > now_s:
            if held.record == record:
                if as_copy:
                    return Stored.SAME
                if not held.is_copy:
                    held.republish_s = republish_s
                    return Stored.SAME
            elif not record.is_newer_than(held.record):
                return Stored.OLDER
            elif as_copy and not held.is_copy:
                as_copy = False  # the newer record of a replica is a replica
        network = network_of(ip)
        if not self._has_room(record, network, place, held, as_copy, now_s):
            return Stored.FULL
        held = self._held.get(place, {}).get(record.slot)  # making room may have taken it
        if held is not None:
            self._remove(held)
        ends_s = min(record.expires_s, now_s + COPY_S) if as_copy else record.expires_s
        fresh = Held(record, place, network, as_copy, ends_s, republish_s)
        if place not in self._held:
            self._held[place] = {}
            heappush(self._farthest, (-distance(place, self._own_id), place))
        self._held[place][record.slot] = fresh
        heappush(self._ends, (ends_s, place, record.slot))
        self._count(fresh, 1)
        self._compact()
        return Stored.KEPT

    def expire(self, now_s: float) -> None:
        """Forget what has ended."""
        while self._ends and self._ends[0][0] <= now_s:
            ends_s, place, slot = heappop(self._ends)
            held = self._held.get(place, {}).get(slot)
            if held is not None and held.ends_s == ends_s:
                self._remove(held)

    def _has_room(
        self, record: Record, network: bytes | None, place: bytes, held: Held | None, as_copy: bool, now_s: float
    ) -> bool:
        """Whether the record may be kept, once what is worth less has made room."""
        limits, size = self._limits, record.size()
        slots = self._held.get(place, {})
        freed = 0 if held is None else held.record.size()
        if held is None and len(slots) >= limits.key_records:
            return False
        if network is not None and (held is None or held.network != network):
            if self._by_network[network] + size > limits.part_of_network * limits.most_bytes:
                return False
            of_network = sum(one.network == network for one in slots.values()) if len(slots) > 64 else 0
            if of_network >= limits.part_of_network * limits.key_records:
                return False
        if as_copy:
            was_copy = freed if held is not None and held.is_copy else 0
            if self._copies_bytes + size - was_copy > limits.copies_part * limits.most_bytes:
                return False
        if self.bytes + size - freed <= limits.most_bytes:
            return True
        self.expire(now_s)
        if self.bytes + size - freed > limits.most_bytes and not as_copy:
            self._drop_copies(place)
        while self.bytes + size - freed > limits.most_bytes:
            if as_copy or not self._drop_farther_than(place):
                return False
        return True

    def _drop_copies(self, but: bytes) -> None:
        copies = [one for place, slots in self._held.items() if place != but for one in slots.values() if one.is_copy]
        for held in copies:
            self._remove(held)

    def _drop_farther_than(self, place: bytes) -> bool:
        """Forget all records of the key that is farthest from this node, if it is farther than `place`."""
        while self._farthest and self._farthest[0][1] not in self._held:
            heappop(self._farthest)
        if not self._farthest or -self._farthest[0][0] <= distance(place, self._own_id):
            return False
        for held in list(self._held[heappop(self._farthest)[1]].values()):
            self._remove(held)
        return True

    def _remove(self, held: Held) -> None:
        slots = self._held[held.place]
        del slots[held.record.slot]
        if not slots:
            del self._held[held.place]
        self._count(held, -1)

    def _count(self, held: Held, sign: int) -> None:
        size = sign * held.record.size()
        self.bytes += size
        self._records += sign
        if held.is_copy:
            self._copies_bytes += size
        if held.network is not None:
            self._by_network[held.network] += size
            if not self._by_network[held.network]:
                del self._by_network[held.network]

    def _compact(self) -> None:
        """Rebuild the heaps when most of their entries are of records that are gone."""
        if len(self._ends) > 64 + 4 * self._records:
            self._ends = [
                (one.ends_s, one.place, one.record.slot) for slots in self._held.values() for one in slots.values()
            ]
            heapify(self._ends)
        if len(self._farthest) > 64 + 4 * len(self._held):
            self._farthest = [(-distance(place, self._own_id), place) for place in self._held]
            heapify(self._farthest)
