"""An iterative lookup: whom to ask next for the nodes nearest to an id, with α requests at a time. Pure.

Each answer names nodes nearer to the target. The lookup is over when the nearest that are known have all answered. Two
things keep a liar from leading it astray: who was named by somebody whose named nodes have failed comes after
all others, and few candidates of one network are taken.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto

from ravnest.dht.contacts import Contact, network_of, number

PARALLEL = 3
"""α: requests of one lookup that are under way at a time, not counting those whose answer is late."""

MOST_REQUESTS = 96
"""Requests of one lookup in all."""

MOST_CANDIDATES = 256
"""Nodes that one lookup remembers."""

NETWORK_IN_LOOKUP = 4
"""Candidates of one network. Local addresses are not counted."""

DOUBTED_FROM = 3
"""A node is doubted once so many of those whom it has named failed, unless at least half as many have answered."""


class _State(Enum):
    KNOWN = auto()
    ASKED = auto()
    LATE = auto()
    ANSWERED = auto()
    FAILED = auto()


@dataclass(slots=True)
class _Candidate:
    contact: Contact
    distance: int
    hops: int
    teller: bytes | None
    state: _State = _State.KNOWN


class Lookup:
    """The search for the `count` nodes nearest to `target`."""

    def __init__(self, target: bytes, start: Iterable[Contact], *, count: int, own_id: bytes) -> None:
        """`start`: the nearest nodes that are known already; one hop away."""
        self.target = target
        self._aim = number(target)
        self._count = count
        self._own_id = own_id
        self._known: dict[bytes, _Candidate] = {}
        self._order: list[_Candidate] = []
        self._networks: Counter[bytes] = Counter()
        self._failed_of: Counter[bytes] = Counter()
        self._answered_of: Counter[bytes] = Counter()
        self.requests = 0
        self._add(start, 1, None)

    def next(self) -> list[Contact]:
        """Whom to ask now; the lookup counts them as asked."""
        asked = []
        under_way = sum(one.state is _State.ASKED for one in self._known.values())
        for one in self._nearest():
            if under_way >= PARALLEL or self.requests >= MOST_REQUESTS:
                break
            if one.state is _State.KNOWN:
                one.state = _State.ASKED
                self.requests += 1
                under_way += 1
                asked.append(one.contact)
        return asked

    @property
    def finished(self) -> bool:
        """Whether the nearest have all answered, or there is nobody left to ask."""
        waiting = {_State.ASKED, _State.LATE}
        if self.requests >= MOST_REQUESTS:
            return not any(one.state in waiting for one in self._known.values())
        return all(one.state is _State.ANSWERED for one in self._nearest())

    def answered(self, contact: Contact, named: Iterable[Contact]) -> None:
        """The node has answered, and has named others."""
        one = self._known.get(contact.id)
        if one is None or one.state is _State.ANSWERED:
            return
        one.state = _State.ANSWERED
        if one.teller is not None:
            self._answered_of[one.teller] += 1
        self._add(named, one.hops + 1, contact.id)

    def late(self, contact: Contact) -> None:
        """The answer takes longer than usual: another node is asked meanwhile."""
        one = self._known.get(contact.id)
        if one is not None and one.state is _State.ASKED:
            one.state = _State.LATE

    def failed(self, contact: Contact) -> None:
        """No answer has come, or what came was no answer."""
        one = self._known.get(contact.id)
        if one is None or one.state is _State.FAILED:
            return
        one.state = _State.FAILED
        if one.teller is not None:
            self._failed_of[one.teller] += 1

    def hops(self, contact: Contact) -> int:
        """How many requests, one after another, led to this node and its answer."""
        return self._known[contact.id].hops

    def nearest_answered(self, count: int) -> list[Contact]:
        """The nearest nodes that have answered, the nearest first."""
        return [one.contact for one in self._order if one.state is _State.ANSWERED][:count]

    def _nearest(self) -> list[_Candidate]:
        """The `count` candidates that count: those that have not failed, whom nobody in doubt has named first."""
        nearest: list[_Candidate] = []
        doubted: list[_Candidate] = []
        for one in self._order:
            if one.state is _State.FAILED:
                continue
            (doubted if self._is_doubted(one) else nearest).append(one)
            if len(nearest) == self._count:
                return nearest
        return (nearest + doubted)[: self._count]

    def _is_doubted(self, one: _Candidate) -> bool:
        if one.state is _State.ANSWERED or one.teller is None:
            return False
        failed = self._failed_of.get(one.teller, 0)
        return failed >= DOUBTED_FROM and failed > 2 * self._answered_of.get(one.teller, 0)

    def _add(self, contacts: Iterable[Contact], hops: int, teller: bytes | None) -> None:
        for contact in contacts:
            known = self._known.get(contact.id)
            if known is not None or contact.id == self._own_id:
                if known is not None and self._is_doubted(known):
                    known.teller = teller  # somebody else vouches for it
                continue
            network = network_of(contact.ip)
            if network is not None:
                if self._networks[network] >= NETWORK_IN_LOOKUP:
                    continue
                self._networks[network] += 1
            one = _Candidate(contact, number(contact.id) ^ self._aim, hops, teller)
            self._known[contact.id] = one
            insort(self._order, one, key=lambda one: one.distance)
        if len(self._order) > MOST_CANDIDATES:
            self._forget(len(self._order) - MOST_CANDIDATES)

    def _forget(self, count: int) -> None:
        """Forget candidates that were never asked: those in doubt first, and then the farthest."""
        unasked = [one for one in reversed(self._order) if one.state is _State.KNOWN]
        unasked.sort(key=lambda one: not self._is_doubted(one))
        for one in unasked[:count]:
            self._order.remove(one)
            del self._known[one.contact.id]
            network = network_of(one.contact.ip)
            if network is not None:
                self._networks[network] -= 1
