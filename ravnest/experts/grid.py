"""The grid of experts, and how the hash table says who hosts which of them. Pure.

An expert is named by its coordinates in a grid of d dimensions, as `3.7` in a grid of two. Under the key of a prefix of
coordinates the table has one sub-key for each next coordinate that somebody hosts (Ryabinin & Gusev, "Learning@home",
NeurIPS 2020), and under that of the longest prefixes one for each block of neighbouring experts (decision 175):

    experts/NAME/at/        sub-key 3  →  somebody hosts an expert that begins with 3
    experts/NAME/at/3       sub-key 0  →  which of 3.0 to 3.15 somebody hosts, and by which claims
    experts/NAME/hosts      sub-key MEMBER  →  a host, where it listens, and how busy it is
    experts/NAME/callers    sub-key MEMBER  →  a caller, and where it listens

A member's name ends with the beginning of its public key, so nobody can announce anything in another's name. What a
member says of itself has a proof that it knows the members' token, and claims are those of such hosts: whoever else can
write to the table is not heard by members.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import prod
from typing import Annotated, Generic, TypeVar

import msgspec

from ravnest.dht import Record
from ravnest.errors import InvalidInput

Expert = tuple[int, ...]
"""Coordinates, one for each dimension of the grid. A shorter one is a prefix."""

MOST_DIMENSIONS = 4
MOST_SIDE = 1024
MOST_EXPERTS = 1 << 20
NAME = re.compile(r"[a-z0-9-]{1,24}")
BLOCK = 16
"""Neighbours, by their last coordinate, of which one host says in one record which it hosts."""

KEY_DIGITS = 16
"""Digits of the public key that end a member's name."""

_LABEL = "[A-Za-z0-9_-]{1,40}"
"""Names are shown to people: nothing in them does anything to a terminal."""

_Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]
_Key = Annotated[str, msgspec.Meta(pattern=r"^([0-9a-f]{64})?\Z")]
_Host = Annotated[str, msgspec.Meta(min_length=1, max_length=253)]
_Proof = Annotated[bytes, msgspec.Meta(max_length=16)]
_Member = Annotated[str, msgspec.Meta(pattern=rf"^{_LABEL}\.[0-9a-f]{{{KEY_DIGITS}}}\Z")]
_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
_Number = Annotated[float, msgspec.Meta(ge=0.0, le=1e12)]


MOST_TERM = 1 << 32
MOST_UPDATES = 1 << 48
"""What counters of an expert can say. Nobody gets there by working. Who announces the greatest term has no lasting
gain by it (claims.py); an expert that is said to have had the most updates counts no further."""


class Claim(msgspec.Struct, frozen=True, array_like=True, order=True):
    """One host's word that it hosts an expert. The greatest of several claims counts.

    term: rises with each host that the expert has had. updates: how many the expert had had when the claim began.
    """

    term: Annotated[int, msgspec.Meta(ge=0, le=MOST_TERM)]
    updates: Annotated[int, msgspec.Meta(ge=0, le=MOST_UPDATES)]
    member: _Member


class Claimed(msgspec.Struct, frozen=True, array_like=True):
    """A claim as the record of its block has it, by the expert's last coordinate."""

    last: Annotated[int, msgspec.Meta(ge=0, lt=MOST_SIDE)]
    term: Annotated[int, msgspec.Meta(ge=0, le=MOST_TERM)]
    updates: Annotated[int, msgspec.Meta(ge=0, le=MOST_UPDATES)]


class ClaimedBlock(msgspec.Struct, frozen=True, array_like=True):
    """All claims of one host in one block."""

    member: _Member
    claimed: Annotated[tuple[Claimed, ...], msgspec.Meta(max_length=BLOCK)]


class Listens(msgspec.Struct, frozen=True, array_like=True):
    """Where a member listens; both ports are 0 where it only opens connections outwards. key: of its listener, where
    it encrypts (line_endpoint.py). proof: see Grid.proof_of."""

    member: _Member
    host: _Host
    pipeline_port: _Port
    bulk_port: _Port
    key: _Key = ""
    proof: _Proof = b""


class HostNews(msgspec.Struct, frozen=True, array_like=True):
    """A host, and how busy it is. answer_s: the mean time from a request's arrival to its answer."""

    at: Listens
    experts: _Count
    most_experts: _Count
    samples_per_s: _Number
    answer_s: _Number
    updates: _Count


Value = TypeVar("Value", Claim, ClaimedBlock, Listens, HostNews)
Told = TypeVar("Told", Listens, HostNews)
Key = TypeVar("Key", str, tuple[int, ...])


@dataclass(frozen=True)
class Dated(Generic[Value]):
    """What a record says, and when it expires, in seconds since 1970."""

    value: Value
    expires_s: float


@dataclass(frozen=True)
class Grid:
    """The experts of one name. `sides`: how many coordinates each dimension has. `token`: of the members; without it
    whoever reads the table believes everybody, as one may who only shows what is there."""

    name: str
    sides: tuple[int, ...]
    token: bytes | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Raises InvalidInput for a name or sides that cannot be."""
        if not NAME.fullmatch(self.name):
            raise InvalidInput(f"expected 1 to 24 of a-z, 0-9 and -, not {self.name[:80]!r}", key="name")
        if not 1 <= len(self.sides) <= MOST_DIMENSIONS or not all(1 <= side <= MOST_SIDE for side in self.sides):
            expected = f"expected 1 to {MOST_DIMENSIONS} whole numbers from 1 to {MOST_SIDE}"
            raise InvalidInput(f"{expected}, not {list(self.sides)}", key="grid")
        if prod(self.sides) > MOST_EXPERTS:
            raise InvalidInput(f"expected at most {MOST_EXPERTS} experts, not {prod(self.sides)}", key="grid")

    def __len__(self) -> int:
        return prod(self.sides)

    def experts(self) -> Iterator[Expert]:
        """All experts, in the order of their coordinates."""
        return product(*map(range, self.sides))

    def prefixes(self) -> Iterator[Expert]:
        """All prefixes of whole experts but the last coordinate: whose keys say who hosts what."""
        return product(*map(range, self.sides[:-1]))

    def holds(self, expert: Sequence[int]) -> bool:
        """Whether these are the coordinates of an expert of this grid."""
        return len(expert) == len(self.sides) and all(
            0 <= one < side for one, side in zip(expert, self.sides, strict=True)
        )

    def matching(self, pattern: str) -> list[Expert]:
        """The experts that a pattern names: `3.7`, or with `*` for any coordinate, `3.*`. Raises InvalidInput."""
        parts = pattern.split(".")
        if len(parts) != len(self.sides) or not all(part == "*" or part.isdecimal() for part in parts):
            shown = ".".join("*" for _ in self.sides)
            raise InvalidInput(f"expected {len(self.sides)} numbers or stars, as in {shown}; not {pattern!r}")
        found = [
            expert
            for expert in self.experts()
            if all(part in ("*", str(one)) for part, one in zip(parts, expert, strict=True))
        ]
        if not found:
            raise InvalidInput(f"the grid {shown_sides(self.sides)} has no expert {pattern!r}")
        return found

    def prefix_key(self, prefix: Expert) -> bytes:
        """The key whose sub-keys are the next coordinates behind a prefix, or the blocks of experts behind it."""
        return f"experts/{self.name}/at/{expert_text(prefix)}".encode()

    @property
    def hosts_key(self) -> bytes:
        return f"experts/{self.name}/hosts".encode()

    @property
    def callers_key(self) -> bytes:
        return f"experts/{self.name}/callers".encode()

    def proof_of(self, public_key: bytes) -> bytes:
        """What only who knows the token can say of the member with this key: of others it proves nothing."""
        said = b"ravnest experts: a member of " + self.name.encode() + b" " + public_key
        return hmac.digest(self.token or b"", said, "sha256")[:16]

    def members(self, records: Iterable[Record], kind: type[Told]) -> dict[str, Dated[Told]]:
        """What members say of themselves under the key of hosts or of callers; what is not of its author, and who does
        not know the token, is left out."""
        found = {}
        for record in records:
            value = value_of(record, kind)
            if value is None or not is_of(_listens(value).member, record.author):
                continue
            if self.token is None or hmac.compare_digest(_listens(value).proof, self.proof_of(record.author)):
                found[_listens(value).member] = Dated(value, record.expires_s)
        return found

    def next_coordinates(self, prefix: Expert, records: Iterable[Record], hosts: Iterable[str]) -> set[int]:
        """The coordinates that the records of a prefix's key say one of these hosts has; what is none is left out."""
        side, keys = self.sides[len(prefix)], {host.rpartition(".")[2] for host in hosts}
        found = {_coordinate(record.subkey) for record in records if record.author.hex()[:KEY_DIGITS] in keys}
        return {one for one in found if one is not None and one < side}

    def claims(self, prefix: Expert, records: Iterable[Record], hosts: Collection[str]) -> dict[Expert, Dated[Claim]]:
        """The claim of these hosts that counts, of each expert behind the last prefix; what its author may not say is
        left out."""
        found: dict[Expert, Dated[Claim]] = {}
        for record in records:
            block, said = _coordinate(record.subkey), value_of(record, ClaimedBlock)
            if block is None or said is None or said.member not in hosts or not is_of(said.member, record.author):
                continue
            for one in said.claimed:
                expert, claim = (*prefix, one.last), Claim(one.term, one.updates, said.member)
                if one.last // BLOCK != block or one.last >= self.sides[-1]:
                    continue
                if expert not in found or claim > found[expert].value:
                    found[expert] = Dated(claim, record.expires_s)
        return found


def still_known(
    old: Mapping[Key, Dated[Value]], new: Mapping[Key, Dated[Value]], now_s: float
) -> dict[Key, Dated[Value]]:
    """What is known after a look at the table has shown `new`, when `old` was known before.

    A look may miss a record that is there: a node answers late, a datagram is lost. So what was announced counts until
    it expires. A greater claim counts beside a smaller one.
    """
    kept = {
        key: one
        for key, one in old.items()
        if one.expires_s > now_s and (key not in new or _greater(one.value, new[key].value))
    }
    return {**new, **kept}


def value_of(record: Record, kind: type[Value]) -> Value | None:
    """The value of a record, None where it is none of this kind."""
    try:
        return msgspec.msgpack.decode(record.value, type=kind)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None


def encoded(value: ClaimedBlock | Listens | HostNews) -> bytes:
    """The bytes of a value of a record."""
    return msgspec.msgpack.encode(value)


def block_of(expert: Expert) -> Expert:
    """The block that an expert is in: its prefix, and the number of the block behind that."""
    return (*expert[:-1], expert[-1] // BLOCK)


def blocks(claims: Mapping[Expert, Claim]) -> dict[Expert, ClaimedBlock]:
    """What one host says of the experts that it claims, by block."""
    found: dict[Expert, list[Claimed]] = {}
    for expert, claim in sorted(claims.items()):
        found.setdefault(block_of(expert), []).append(Claimed(expert[-1], claim.term, claim.updates))
    member = next((claim.member for claim in claims.values()), "")
    return {block: ClaimedBlock(member, tuple(claimed)) for block, claimed in found.items()}


def member_name(label: str, public_key: bytes) -> str:
    """The name of the member with this public key. `label`: 1 to 40 characters that a person can read."""
    if not re.fullmatch(_LABEL, label):
        raise InvalidInput(f"expected 1 to 40 letters, digits, - and _, not {label[:80]!r}", key="name")
    return f"{label}.{public_key.hex()[:KEY_DIGITS]}"


def is_of(member: str, public_key: bytes) -> bool:
    """Whether a member's name is one of the owner of this public key."""
    return member.rpartition(".")[2] == public_key.hex()[:KEY_DIGITS]


def expert_text(expert: Sequence[int]) -> str:
    """`3.7`"""
    return ".".join(map(str, expert))


def shown_sides(sides: Sequence[int]) -> str:
    """`4 × 4`"""
    return " × ".join(map(str, sides))


def _greater(one: object, other: object) -> bool:
    return isinstance(one, Claim) and isinstance(other, Claim) and one > other


def _listens(value: Listens | HostNews) -> Listens:
    return value.at if isinstance(value, HostNews) else value


def _coordinate(subkey: bytes) -> int | None:
    return int(subkey) if len(subkey) <= 4 and subkey.isdigit() else None
