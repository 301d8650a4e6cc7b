"""What can happen to a node of the table, and what it wants done: the events and instructions of `HashTableNode`.

`call` is a number that the caller chooses; the answer carries it. Times are in seconds; those on the clock count from
1970.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ravnest.dht.contacts import Address, Contact
from ravnest.dht.messages import AnyMessage
from ravnest.dht.records import Record
from ravnest.dht.store import Stored


@dataclass(frozen=True, slots=True)
class Entry:
    """What the node is to sign and store. With `renewed` it does so again and again until the entry is withdrawn or
    stored anew without; an empty value withdraws."""

    key: bytes
    subkey: bytes
    value: bytes
    lifetime_s: float
    renewed: bool = False


@dataclass(frozen=True, slots=True)
class JoinAsked:
    """The node is to get to know the table through peers at these addresses; without any it begins a new table.

    call: None where the node asks itself, and nobody waits for an answer.
    """

    call: int | None
    peers: tuple[Address, ...]
    deadline_s: float


@dataclass(frozen=True, slots=True)
class GetAsked:
    """Somebody wants the records of these keys. `thorough`: from all of the nearest nodes and from no copy, so that
    nothing that any of them has is missing; else from the first node that has some."""

    call: int
    keys: tuple[bytes, ...]
    deadline_s: float
    thorough: bool = False


@dataclass(frozen=True, slots=True)
class StoreAsked:
    """Somebody wants entries to be stored."""

    call: int
    entries: tuple[Entry, ...]
    deadline_s: float


@dataclass(frozen=True, slots=True)
class MessageArrived:
    """A valid message came from this address."""

    sender: Address
    message: AnyMessage


@dataclass(frozen=True, slots=True)
class TimePassed:
    """The moment has come that `HashTableNode.wakes_s` named."""


Event = JoinAsked | GetAsked | StoreAsked | MessageArrived | TimePassed


@dataclass(frozen=True, slots=True)
class Send:
    """Send one datagram."""

    address: Address
    message: AnyMessage


@dataclass(frozen=True, slots=True)
class KeyFound:
    """The valid records of one key, the newest first, without those that were withdrawn.

    hops: requests one after another that led to them; 0 where this node had them, None where none were found.
    complete: False when the time was over before the search was. nearest: the nodes nearest to the key that have
    answered.
    """

    records: tuple[Record, ...]
    hops: int | None
    requests: int
    complete: bool
    nearest: tuple[Contact, ...] = ()


@dataclass(frozen=True, slots=True)
class EntryStored:
    """kept: how many nodes keep it. refused: why others do not → how many. hops: see KeyFound."""

    kept: int
    refused: Mapping[Stored, int]
    hops: int | None
    requests: int


@dataclass(frozen=True, slots=True)
class AnswerJoin:
    """reached: how many of the peers have answered."""

    call: int
    reached: int
    contacts: int


@dataclass(frozen=True, slots=True)
class AnswerGet:
    call: int
    found: Mapping[bytes, KeyFound]


@dataclass(frozen=True, slots=True)
class AnswerStore:
    """In the order of the entries."""

    call: int
    stored: tuple[EntryStored, ...]


Instruction = Send | AnswerJoin | AnswerGet | AnswerStore
