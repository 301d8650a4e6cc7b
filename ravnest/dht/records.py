"""Records, what makes one acceptable, and which of two is the newer. Pure.

A record says a value of one sub-key of a key. Its author signs it, and nobody else can change or withdraw it: the place
of a record is its key, its author and its sub-key. Rules say by the beginning of a key who may write there, for how
long and what; they are checked by every node that keeps a record and by everybody who reads one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Protocol

import msgspec

from ravnest.errors import InvalidInput

KEY_BYTES = 64
SUBKEY_BYTES = 64
VALUE_BYTES = 600
"""A record fits into one datagram, together with all that goes with it."""

PUBLIC_KEY_BYTES = 32
SIGNATURE_BYTES = 64

SKEW_S = 60.0
"""The most by which two nodes' clocks may differ."""

LONGEST_S = 86_400.0
"""A record that its author does not renew ends within a day."""

_SIGNED_FOR = "ravnest record 1"
"""The beginning of what is signed, so that a signature of something else is none of a record."""


class Identity(Protocol):
    """Who signs, and how signatures of others are checked."""

    @property
    def public_key(self) -> bytes: ...

    def sign(self, data: bytes) -> bytes: ...

    def verify(self, public_key: bytes, data: bytes, signature: bytes) -> bool: ...


class Record(msgspec.Struct, frozen=True, array_like=True):
    """Times are in seconds since 1970. An empty value withdraws what was there."""

    key: Annotated[bytes, msgspec.Meta(min_length=1, max_length=KEY_BYTES)]
    subkey: Annotated[bytes, msgspec.Meta(max_length=SUBKEY_BYTES)]
    value: Annotated[bytes, msgspec.Meta(max_length=VALUE_BYTES)]
    author: Annotated[bytes, msgspec.Meta(min_length=PUBLIC_KEY_BYTES, max_length=PUBLIC_KEY_BYTES)]
    issued_s: Annotated[float, msgspec.Meta(ge=0.0, le=1e10)]
    expires_s: Annotated[float, msgspec.Meta(ge=0.0, le=1e10)]
    signature: Annotated[bytes, msgspec.Meta(min_length=SIGNATURE_BYTES, max_length=SIGNATURE_BYTES)]

    @property
    def slot(self) -> tuple[bytes, bytes]:
        """The record's place under its key."""
        return self.author, self.subkey

    def size(self) -> int:
        """Bytes that keeping it takes, about."""
        return len(self.key) + len(self.subkey) + len(self.value) + RECORD_OVERHEAD_BYTES

    def is_newer_than(self, other: Record) -> bool:
        """Of two records of one place the later issued one counts; the signature decides where both say the same."""
        return (self.issued_s, self.signature) > (other.issued_s, other.signature)


RECORD_OVERHEAD_BYTES = 600
"""What Python's objects of one record take beside its own bytes, in a store, about."""


def signed_record(
    identity: Identity, key: bytes, subkey: bytes, value: bytes, *, issued_s: float, lifetime_s: float
) -> Record:
    """Return a record of this author. Raises InvalidInput when a part is too long."""
    for name, part, least, most in (
        ("key", key, 1, KEY_BYTES),
        ("subkey", subkey, 0, SUBKEY_BYTES),
        ("value", value, 0, VALUE_BYTES),
    ):
        if not least <= len(part) <= most:
            raise InvalidInput(f"expected {least} to {most} bytes, not {len(part)}", key=name)
    if not 0 < lifetime_s <= LONGEST_S:
        raise InvalidInput(f"expected more than 0 and at most {LONGEST_S:.0f} s, not {lifetime_s:g}", key="lifetime_s")
    parts = (key, subkey, value, identity.public_key, issued_s, issued_s + lifetime_s)
    return Record(*parts, identity.sign(_signed_part(*parts)))


def is_signed(record: Record, identity: Identity) -> bool:
    """Whether the record is as its author signed it."""
    parts = (record.key, record.subkey, record.value, record.author, record.issued_s, record.expires_s)
    return identity.verify(record.author, _signed_part(*parts), record.signature)


def _signed_part(key: bytes, subkey: bytes, value: bytes, author: bytes, issued_s: float, expires_s: float) -> bytes:
    return msgspec.msgpack.encode((_SIGNED_FOR, key, subkey, value, author, issued_s, expires_s))


@dataclass(frozen=True)
class Rule:
    """What may be written under keys with one beginning.

    authors: the public keys that may write, or None for everybody; each has sub-keys of its own in any case.
    owner_in_key: the key ends with "/" and its author's public key in hex, so that it has one author only.
    value: the type that a value has to decode to as msgpack, with msgspec's bounds; None for any bytes.
    longest_s: how far from now a record may expire.
    """

    authors: frozenset[bytes] | None = None
    owner_in_key: bool = False
    value: Any = None
    longest_s: float = LONGEST_S


@dataclass(frozen=True)
class Rules:
    """`by_prefix`: beginning of a key → its rule; the longest that fits counts. `otherwise`: the rule of all other
    keys, or None where no other key may be written."""

    by_prefix: Mapping[bytes, Rule] = field(default_factory=dict)
    otherwise: Rule | None = field(default_factory=Rule)

    def refusal(self, record: Record, identity: Identity, now_s: float) -> str | None:
        """Why the record is not acceptable; None when it is. The signature, which takes longest, comes last."""
        rule = self._rule(record.key)
        if rule is None:
            return "no rule lets this key be written"
        if not record.issued_s <= now_s + SKEW_S:
            return "issued in the future"
        if not now_s < record.expires_s <= now_s + SKEW_S + min(rule.longest_s, LONGEST_S):
            return "expired, or expires too late"
        if record.expires_s <= record.issued_s:
            return "expires before it is issued"
        if rule.authors is not None and record.author not in rule.authors:
            return "this author may not write this key"
        if rule.owner_in_key and not record.key.endswith(b"/" + record.author.hex().encode()):
            return "only the owner that the key names may write it"
        if rule.value is not None and record.value:
            try:
                msgspec.msgpack.decode(record.value, type=rule.value)
            except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
                return "the value does not have the form that this key asks for"
        return None if is_signed(record, identity) else "the signature is wrong"

    def _rule(self, key: bytes) -> Rule | None:
        fitting = [prefix for prefix in self.by_prefix if key.startswith(prefix)]
        return self.by_prefix[max(fitting, key=len)] if fitting else self.otherwise
