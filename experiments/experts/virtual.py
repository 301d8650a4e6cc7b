"""Large tables under the virtual clock, with the latencies of homes.

In: a number of nodes. Out: hops and times of searches. Small tables are joined node by node. In large ones each node is
given the contacts that joining would give it: in each bucket as many as it holds, chosen by chance from all nodes in
its range. Both are measured where both are affordable.
"""

import random
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from ravnest.dht.contacts import ID_BITS, Contact, number
from ravnest.dht.events import AnswerGet, Entry, GetAsked, JoinAsked, StoreAsked
from ravnest.dht.node import HashTableNode
from ravnest.dht.routing import BUCKET_CONTACTS
from ravnest.simulator.hash_table import Answer, ChecksumIdentity, Drawn, VirtualTable, address_of

ACCESS_S = 0.008
"""Median one-way delay of a home's own line; the lines' spread is log-normal with a deviation of 0.5."""

ACROSS_S = 0.04
"""One-way delay across the region, from one edge to the other."""

LOSS = 0.005

LIFETIME_S = 36_000.0
DEADLINE_S = 60.0


@dataclass(frozen=True)
class Measured:
    """Of the searches of one table; `get_s` are the virtual seconds of each get."""

    nodes: int
    joined: bool
    get_s: Sequence[float]
    hops: Sequence[int]
    requests: Sequence[int]
    found: int
    asked: int
    store_s: Sequence[float]


class Homes:
    """One-way delays between homes at random places of a square region."""

    def __init__(self, count: int, seed: int) -> None:
        draw = random.Random(seed)
        self._places = [(draw.random(), draw.random()) for _ in range(count)]
        self._access_s = [ACCESS_S * draw.lognormvariate(0.0, 0.5) for _ in range(count)]

    def delay_s(self, one: int, other: int) -> float:
        """From one home to another."""
        (x, y), (u, v) = self._places[one], self._places[other]
        away = ((x - u) ** 2 + (y - v) ** 2) ** 0.5
        return self._access_s[one] + self._access_s[other] + ACROSS_S * away


def made(count: int, *, joined: bool, seed: int) -> VirtualTable:
    """A table of `count` nodes that know each other."""
    table = VirtualTable(Homes(count, seed).delay_s, loss=LOSS, seed=str(seed))
    nodes = [HashTableNode(identity_of(index, seed), Drawn(f"{seed}/{index}").bytes) for index in range(count)]
    for node in nodes:
        table.add(node)
    if joined:
        for index in range(1, count):
            peer = table.address(random.Random(index).randrange(index))
            call = table.ask(index, partial(JoinAsked, peers=(peer,), deadline_s=DEADLINE_S))
            table.answer(call, DEADLINE_S + 1)
    else:
        fill(nodes, seed)
    return table


def identity_of(index: int, seed: int) -> ChecksumIdentity:
    """The identity of a node of `made`."""
    return ChecksumIdentity(f"{seed}/{index}")


def fill(nodes: Sequence[HashTableNode], seed: int) -> None:
    """Give each node the contacts that joining would give it."""
    everyone = sorted((number(node.id), Contact(node.id, *address_of(index))) for index, node in enumerate(nodes))
    ids = [one for one, _ in everyone]
    draw = random.Random(seed)
    for node in nodes:
        own, known = number(node.id), []
        for bucket in range(ID_BITS):
            low = ((own >> bucket) ^ 1) << bucket
            start, stop = bisect_left(ids, low), bisect_left(ids, low + (1 << bucket))
            places = range(start, stop)
            chosen = places if len(places) <= BUCKET_CONTACTS else draw.sample(places, BUCKET_CONTACTS)
            known += [everyone[place][1] for place in chosen]
        node.know(known, 0.0)


def measure(count: int, *, joined: bool, searches: int, seed: int) -> Measured:
    """Store `searches` keys and get each once from another node, one after another."""
    table, draw = made(count, joined=joined, seed=seed), random.Random(seed + 1)
    keys = [b"%d" % index for index in range(searches)]
    get_s, store_s, hops, requests, found = [], [], [], [], 0
    for key in keys:
        entries = (Entry(key, b"", key, LIFETIME_S),)
        spent_s, _ = asked(table, draw.randrange(count), partial(StoreAsked, entries=entries, deadline_s=DEADLINE_S))
        store_s.append(spent_s)
    for key in keys:
        spent_s, answer = asked(table, draw.randrange(count), partial(GetAsked, keys=(key,), deadline_s=DEADLINE_S))
        assert isinstance(answer, AnswerGet)
        one = answer.found[key]
        get_s.append(spent_s)
        requests.append(one.requests)
        if [record.value for record in one.records] == [key]:
            found += 1
            hops.append(one.hops or 0)
    return Measured(count, joined, get_s, hops, requests, found, searches, store_s)


def asked(table: VirtualTable, index: int, event: Callable[[int], GetAsked | StoreAsked]) -> tuple[float, Answer]:
    """The virtual seconds until a node has answered, and its answer."""
    began_s = table.now_s
    call = table.ask(index, event)
    while call not in table.answers:
        table.run_until(table.now_s + 0.25)
    at_s, answer = table.answers.pop(call)
    return at_s - began_s, answer
