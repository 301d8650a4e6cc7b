"""What nodes say to each other: one datagram each, validated while it is decoded. Pure.

Four rules keep strangers bounded. Every field has bounds. A datagram of one network packet holds a message. A request
is at least a third as long as all that it is answered with: the longest answer, and a ping that is sent twice. So a
forged sender's address turns nodes into no weapon (as in RFC 9000, section 8). And an answer counts only with the
random nonce of a request, from the address to which that was sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec

from ravnest.dht.contacts import Contact, IdBytes
from ravnest.dht.records import PUBLIC_KEY_BYTES, SIGNATURE_BYTES, Record
from ravnest.dht.store import Stored

DATAGRAM_BYTES = 1232
"""What passes every IPv6 network in one piece: 1280 bytes less the headers of IPv6 and UDP."""

NONCE_BYTES = 8
TOKEN_BYTES = 8
MOST_NAMED = 16
"""Contacts in one answer."""

MOST_RECORDS = 8
MOST_OF_KEY = 4096
"""Records of one key that are read from one node."""

_ANSWER_ROOM = 1130
"""Bytes for records and contacts in one answer; the rest is for what stands around them."""

_RECORDS_BESIDE_CONTACTS = 860
"""Bytes for records where contacts go along, so that a search can go on: the longest record fits."""

_CONTACT_BYTES = 30
_RECORD_BYTES = PUBLIC_KEY_BYTES + SIGNATURE_BYTES + 32
"""What travels with each contact beside its address, and with each record beside its key, sub-key and value."""

Nonce = Annotated[bytes, msgspec.Meta(min_length=NONCE_BYTES, max_length=NONCE_BYTES)]
Token = Annotated[bytes, msgspec.Meta(min_length=TOKEN_BYTES, max_length=TOKEN_BYTES)]

PING_PADDING = bytes(100)
FIND_PADDING = bytes(410)


class Message(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """The base of all messages. `sender` is the id of the node that sends it, as it says itself."""

    nonce: Nonce
    sender: IdBytes


class Request(Message, frozen=True, array_like=True, kw_only=True):
    """`listens`: whether the sender answers requests of others; who only opens connections outwards does not."""

    listens: bool


class Ping(Request, frozen=True, array_like=True, kw_only=True, tag=1):
    """Asks a node to prove its id."""

    padding: Annotated[bytes, msgspec.Meta(min_length=100, max_length=512)] = PING_PADDING


class Pong(Message, frozen=True, array_like=True, kw_only=True, tag=2):
    """The public key, whose hash is the id, and a signature of `pong_part`."""

    public_key: Annotated[bytes, msgspec.Meta(min_length=PUBLIC_KEY_BYTES, max_length=PUBLIC_KEY_BYTES)]
    signature: Annotated[bytes, msgspec.Meta(min_length=SIGNATURE_BYTES, max_length=SIGNATURE_BYTES)]


class Find(Request, frozen=True, array_like=True, kw_only=True, tag=3):
    """Asks for the contacts nearest to `target`, and for the records of the key that has this id.

    skip: so many records of the key are known from this node already. fresh: copies on the way do not count.
    """

    target: IdBytes
    records: bool = True
    fresh: bool = False
    skip: Annotated[int, msgspec.Meta(ge=0, le=MOST_OF_KEY)] = 0
    padding: Annotated[bytes, msgspec.Meta(min_length=410, max_length=1100)] = FIND_PADDING


class Found(Message, frozen=True, array_like=True, kw_only=True, tag=4):
    """token: lets the asker store something here. total: how many records of the key there are, of which `records` are
    those after the skipped ones, as many as fit. copies: whether copies on the way are among them."""

    token: Token
    total: Annotated[int, msgspec.Meta(ge=0, le=MOST_OF_KEY)]
    copies: bool
    records: Annotated[tuple[Record, ...], msgspec.Meta(max_length=MOST_RECORDS)]
    contacts: Annotated[tuple[Contact, ...], msgspec.Meta(max_length=MOST_NAMED)]


class Store(Request, frozen=True, array_like=True, kw_only=True, tag=5):
    """Asks a node to keep records, for good or as copies on the way."""

    token: Token
    records: Annotated[tuple[Record, ...], msgspec.Meta(min_length=1, max_length=MOST_RECORDS)]
    as_copies: bool = False


class StoreAnswer(Message, frozen=True, array_like=True, kw_only=True, tag=6):
    """What became of each record, in their order."""

    results: Annotated[tuple[Stored, ...], msgspec.Meta(min_length=1, max_length=MOST_RECORDS)]


AnyMessage = Ping | Pong | Find | Found | Store | StoreAnswer

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[AnyMessage] = msgspec.msgpack.Decoder(AnyMessage)


def encoded(message: AnyMessage) -> bytes:
    """The datagram of a message."""
    return _encoder.encode(message)


def decoded(datagram: bytes) -> AnyMessage | None:
    """The message in a datagram; None when there is no valid one."""
    if len(datagram) > DATAGRAM_BYTES:
        return None
    try:
        return _decoder.decode(datagram)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None


def pong_part(nonce: bytes, answerer: bytes, asker: bytes) -> bytes:
    """What the answerer of a ping signs: that it has this id and answers this asker's nonce."""
    return b"ravnest pong 1 " + nonce + answerer + asker


def fitting(records: Sequence[Record], contacts: Sequence[Contact]) -> tuple[tuple[Record, ...], tuple[Contact, ...]]:
    """As many of the records, and then of the contacts, from the first on, as one answer holds."""
    room = _ANSWER_ROOM
    left = _RECORDS_BESIDE_CONTACTS if contacts else room
    some_records = []
    for record in records[:MOST_RECORDS]:
        size = record_bytes(record)
        if size > left:
            break
        left -= size
        room -= size
        some_records.append(record)
    some_contacts = []
    for contact in contacts[:MOST_NAMED]:
        room -= len(contact.ip) + _CONTACT_BYTES
        if room < 0:
            break
        some_contacts.append(contact)
    return tuple(some_records), tuple(some_contacts)


def batches(records: Sequence[Record]) -> list[tuple[Record, ...]]:
    """The records in groups of which each fits into one message."""
    groups: list[tuple[Record, ...]] = []
    rest = list(records)
    while rest:
        some, _ = fitting(rest, ())
        groups.append(some)
        rest = rest[len(some) :]
    return groups


def record_bytes(record: Record) -> int:
    """Bytes of a record in a message, at most."""
    return len(record.key) + len(record.subkey) + len(record.value) + _RECORD_BYTES
