"""A hash table of virtual nodes, as several test files need it."""

from collections.abc import Callable, Sequence

from ravnest.dht.contacts import Address
from ravnest.dht.events import (
    AnswerGet,
    AnswerJoin,
    AnswerStore,
    Entry,
    EntryStored,
    GetAsked,
    JoinAsked,
    KeyFound,
    Send,
    StoreAsked,
)
from ravnest.dht.messages import decoded, encoded
from ravnest.dht.node import HashTableNode
from ravnest.dht.records import Rules
from ravnest.dht.store import StoreLimits
from ravnest.simulator.hash_table import ChecksumIdentity, Drawn, VirtualTable


def virtual_node(
    name: str, *, listens: bool = True, rules: Rules | None = None, limits: StoreLimits | None = None
) -> HashTableNode:
    """A node whose id and numbers follow from its name."""
    return HashTableNode(ChecksumIdentity(name), Drawn(name).bytes, listens=listens, rules=rules, limits=limits)


def over_the_wire(sent: Send) -> Send:
    """What is sent, after it was encoded and decoded."""
    datagram = encoded(sent.message)
    message = decoded(datagram)
    assert message == sent.message
    return Send(sent.address, message)


class Town:
    """`count` nodes that have joined through the first."""

    def __init__(
        self,
        count: int,
        *,
        loss: float = 0.0,
        seed: str = "0",
        on_message: Callable[[Send], Send | None] = lambda sent: sent,
    ) -> None:
        self.table = VirtualTable(
            lambda one, other: 0.01 + 0.0001 * (one + other), seed=seed, loss=loss, on_message=on_message
        )
        self.nodes: list[HashTableNode] = []
        self.seed = seed
        for _ in range(count):
            self.settle()

    def settle(self, *, listens: bool = True, peers: Sequence[Address] | None = None) -> int:
        """One more node joins, through the first if nothing else is said. Returns its number."""
        node = virtual_node(f"{self.seed}/{len(self.nodes)}", listens=listens)
        number = self.table.add(node, outwards_only=not listens)
        self.nodes.append(node)
        if peers is None:
            peers = [self.table.address(0)] if number else []
        self.join(number, peers)
        return number

    def join(self, number: int, peers: Sequence[Address]) -> AnswerJoin:
        call = self.table.ask(number, lambda call: JoinAsked(call, tuple(peers), 30.0))
        answer = self.table.answer(call, 31.0)
        assert isinstance(answer, AnswerJoin)
        return answer

    def store(self, number: int, *entries: Entry) -> tuple[EntryStored, ...]:
        call = self.table.ask(number, lambda call: StoreAsked(call, entries, 30.0))
        answer = self.table.answer(call, 31.0)
        assert isinstance(answer, AnswerStore)
        return answer.stored

    def get(self, number: int, *keys: bytes, thorough: bool = False) -> list[KeyFound]:
        call = self.table.ask(number, lambda call: GetAsked(call, keys, 30.0, thorough))
        answer = self.table.answer(call, 31.0)
        assert isinstance(answer, AnswerGet)
        return [answer.found[key] for key in keys]

    def values(self, number: int, key: bytes, *, thorough: bool = False) -> list[bytes]:
        """The values of a key, as one node finds them."""
        (found,) = self.get(number, key, thorough=thorough)
        return [record.value for record in found.records]


def entry(
    key: bytes, value: bytes = b"v", subkey: bytes = b"", lifetime_s: float = 600.0, renewed: bool = False
) -> Entry:
    return Entry(key, subkey, value, lifetime_s, renewed)
