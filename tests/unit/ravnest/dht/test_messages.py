from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ravnest.dht.contacts import Contact
from ravnest.dht.messages import (
    DATAGRAM_BYTES,
    MOST_NAMED,
    MOST_RECORDS,
    AnyMessage,
    Find,
    Found,
    Ping,
    Pong,
    Store,
    StoreAnswer,
    batches,
    decoded,
    encoded,
    fitting,
)
from ravnest.dht.records import KEY_BYTES, SUBKEY_BYTES, VALUE_BYTES, Record
from ravnest.dht.store import Stored

LONGEST = Record(bytes(KEY_BYTES), bytes(SUBKEY_BYTES), bytes(VALUE_BYTES), bytes(32), 1e9, 1e9, bytes(64))
SMALL = Record(b"k", b"", b"v", bytes(32), 1.0, 2.0, bytes(64))
FAR = Contact(b"\xff" * 20, b"\xff" * 16, 65535)
HEAD = {"nonce": bytes(8), "sender": bytes(20)}
ALL: list[AnyMessage] = [
    Ping(**HEAD, listens=True),
    Pong(**HEAD, public_key=bytes(32), signature=bytes(64)),
    Find(**HEAD, listens=False, target=bytes(20)),
    Found(**HEAD, token=bytes(8), total=9, copies=True, records=(SMALL,), contacts=(FAR,)),
    Store(**HEAD, listens=True, token=bytes(8), records=(SMALL,)),
    StoreAnswer(**HEAD, results=(Stored.KEPT, Stored.FULL)),
]


def found(records: tuple[Record, ...], contacts: tuple[Contact, ...]) -> Found:
    return Found(**HEAD, token=bytes(8), total=4096, copies=True, records=records, contacts=contacts)


@pytest.mark.parametrize("message", ALL, ids=lambda one: type(one).__name__)
def test_a_message_is_read_as_it_was_written_and_no_part_of_it_may_be_missing(message: AnyMessage) -> None:
    datagram = encoded(message)
    assert decoded(datagram) == message
    for end in range(len(datagram)):
        assert decoded(datagram[:end]) is None
    assert decoded(datagram + bytes(DATAGRAM_BYTES)) is None


@given(st.binary(max_size=1300))
def test_no_bytes_of_a_stranger_do_harm(datagram: bytes) -> None:
    message = decoded(datagram)
    assert message is None or decoded(encoded(message)) == message


@pytest.mark.parametrize(
    "changed",
    [
        {"nonce": bytes(7)},
        {"sender": bytes(21)},
        {"token": b""},
        {"total": -1},
        {"total": 1 << 20},
        {"records": (SMALL,) * (MOST_RECORDS + 1)},
        {"contacts": (FAR,) * (MOST_NAMED + 1)},
        {"contacts": (Contact(bytes(19), bytes(4), 1),)},
        {"contacts": (Contact(bytes(20), bytes(3), 1),)},
        {"contacts": (Contact(bytes(20), bytes(4), 0),)},
        {"records": (msgspec.structs.replace(SMALL, expires_s=float("inf")),)},
        {"records": (msgspec.structs.replace(SMALL, issued_s=float("nan")),)},
        {"records": (msgspec.structs.replace(SMALL, key=b""),)},
        {"records": (msgspec.structs.replace(SMALL, value=bytes(VALUE_BYTES + 1)),)},
        {"records": (msgspec.structs.replace(SMALL, signature=bytes(63)),)},
    ],
)
def test_what_is_out_of_bounds_is_no_message(changed: dict[str, Any]) -> None:
    assert decoded(encoded(msgspec.structs.replace(found((), ()), **changed))) is None


def test_an_answer_fits_into_a_datagram_and_all_that_follows_a_request_is_at_most_three_times_as_long() -> None:
    fullest = [
        found(*fitting([LONGEST] * 3, [FAR] * 30)),
        found(*fitting([SMALL] * 30, [FAR] * 30)),
        found(*fitting([], [FAR] * 30)),
        found(*fitting([SMALL] * 30, [])),
    ]
    lengths = [len(encoded(one)) for one in fullest]
    assert max(lengths) <= DATAGRAM_BYTES
    assert all(len(one.contacts) >= 5 for one in fullest[:3]), "a search can go on"
    assert len(fullest[0].records) == 1
    ping, pong, find = (len(encoded(one)) for one in ALL[:3])
    assert max(lengths) + 2 * ping <= 3 * find
    assert pong + 2 * ping <= 3 * ping
    assert decoded(encoded(msgspec.structs.replace(ALL[2], padding=bytes(350)))) is None
    assert decoded(encoded(msgspec.structs.replace(ALL[0], padding=b""))) is None


def test_records_are_stored_in_messages_that_fit() -> None:
    groups = batches([LONGEST, SMALL, LONGEST] + [SMALL] * 20)
    assert [record for group in groups for record in group] == [LONGEST, SMALL, LONGEST] + [SMALL] * 20
    for group in groups:
        assert len(encoded(Store(**HEAD, listens=True, token=bytes(8), records=group))) <= DATAGRAM_BYTES
    assert len(groups) < 8
