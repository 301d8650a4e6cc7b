"""What all doings of one node share: its table, its records, its requests, its timers, and what is to be sent. Pure.

Who takes part is met here: a node comes into the routing table only after it has proven that it owns the key of which
its id is the hash, at the address from which it spoke.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush

from ravnest.dht.answering import Answers
from ravnest.dht.contacts import Address, Contact, node_id
from ravnest.dht.events import Instruction, Send
from ravnest.dht.messages import Message, Ping, Pong, pong_part
from ravnest.dht.records import Identity, Rules
from ravnest.dht.requests import Requests
from ravnest.dht.routing import RoutingTable
from ravnest.dht.store import RecordStore, StoreLimits

MOST_PROVING = 64
"""Nodes that are asked at a time to prove their ids. Who comes meanwhile is met another time."""

REMEMBERED = 32
"""Addresses at which a contact has been: where to join again when nobody is left."""


class Core:
    """The state of one node. `out` gathers the instructions of the event that is being handled."""

    def __init__(
        self,
        identity: Identity,
        draw: Callable[[int], bytes],
        *,
        listens: bool,
        rules: Rules,
        limits: StoreLimits | None,
        ip_bytes: frozenset[int] = frozenset({4, 16}),
    ) -> None:
        """See HashTableNode."""
        self.own_id = node_id(identity.public_key)
        self.identity = identity
        self.draw = draw
        self.listens = listens
        self.rules = rules
        self._ip_bytes = ip_bytes
        self.table = RoutingTable(self.own_id)
        self.store = RecordStore(self.own_id, limits)
        self.answers = Answers(identity, self.table, self.store, rules, draw)
        self.out: list[Instruction] = []
        self.requests = Requests(draw, lambda address, message: self.out.append(Send(address, message)))
        self.remembered: deque[Address] = deque(maxlen=REMEMBERED)
        self._proving: set[Contact] = set()
        self._timers: list[tuple[float, int, Callable[[float], None]]] = []
        self._timer = 0

    @property
    def wakes_s(self) -> float | None:
        """When `pass_time` is to be called; None when nothing waits."""
        times = (self.requests.next_s, self._timers[0][0] if self._timers else None)
        return min((one for one in times if one is not None), default=None)

    def at(self, at_s: float, action: Callable[[float], None]) -> None:
        """Call `action` with the time when it is `at_s`."""
        self._timer += 1
        heappush(self._timers, (at_s, self._timer, action))

    def pass_time(self, now_s: float) -> None:
        """Do all that is due."""
        self.requests.pass_time(now_s)
        while self._timers and self._timers[0][0] <= now_s:
            heappop(self._timers)[2](now_s)

    def met(self, contact: Contact, now_s: float) -> None:
        """A node that listens has spoken from its address: note it, or let it prove its id."""
        if self.table.holds(contact):
            self.table.seen(contact, now_s)
        elif contact not in self._proving and len(self._proving) < MOST_PROVING and self.table.wants(contact):
            self._prove(contact, now_s)

    def reaches(self, contact: Contact) -> bool:
        """Whether this node has a socket for addresses of this kind."""
        return len(contact.ip) in self._ip_bytes

    def greet(self, address: Address, now_s: float, on_end: Callable[[bool, float], None]) -> None:
        """Ask whoever is at an address for its id and the proof of it, also where it was silent: who was cut off has
        found all silent. `on_end`: whether it came."""
        self._ping(address, now_s, None, on_end)

    def _prove(self, contact: Contact, now_s: float) -> None:
        self._proving.add(contact)

        def ended(_: bool, __: float) -> None:
            self._proving.discard(contact)

        self._ping(contact.address, now_s, contact, ended)

    def _ping(
        self, address: Address, now_s: float, expected: Contact | None, on_end: Callable[[bool, float], None]
    ) -> None:
        def failed(failed_s: float) -> None:
            if expected is not None:
                self.table.failed(expected)
            on_end(False, failed_s)

        def answered(pong: Message, answered_s: float) -> None:
            on_end(self._take_proof(address, expected, pong, answered_s), answered_s)

        sent = self.requests.ask(
            address,
            lambda nonce: Ping(nonce=nonce, sender=self.own_id, listens=self.listens),
            now_s,
            expects=Pong,
            on_answer=answered,
            on_failure=failed,
            though_silent=expected is None,
        )
        if not sent:
            self.at(now_s, partial(on_end, False))

    def _take_proof(self, address: Address, expected: Contact | None, pong: Message, now_s: float) -> bool:
        assert isinstance(pong, Pong)
        part = pong_part(pong.nonce, pong.sender, self.own_id)
        proven = node_id(pong.public_key) == pong.sender and self.identity.verify(pong.public_key, part, pong.signature)
        if not proven or pong.sender == self.own_id or (expected is not None and expected.id != pong.sender):
            if expected is not None:
                self.table.failed(expected)
            if not proven:
                self.requests.blacklist.lied(address, now_s)
            return False
        contact = Contact(pong.sender, address.ip, address.port)
        silent = self.table.add(contact, now_s)
        if address not in self.remembered:
            self.remembered.append(address)
        if silent is not None and silent not in self._proving and len(self._proving) < MOST_PROVING:
            self._prove(silent, now_s)
        return True
