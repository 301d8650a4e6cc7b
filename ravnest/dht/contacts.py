"""Ids, addresses and contacts of nodes, and the distance between ids. Pure.

An id has 160 bits. A node's id is the hash of its public key, and a key's id is the hash of the key, so both lie in one
space. The distance of two ids is their exclusive or, read as a number (Maymounkov & Mazières 2002, section 2.1).
"""

from __future__ import annotations

import ipaddress
from functools import lru_cache
from hashlib import sha256
from typing import Annotated, NamedTuple

import msgspec

ID_BYTES = 20
ID_BITS = 8 * ID_BYTES

IdBytes = Annotated[bytes, msgspec.Meta(min_length=ID_BYTES, max_length=ID_BYTES)]
IpBytes = Annotated[bytes, msgspec.Meta(min_length=4, max_length=16)]
Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]


class Address(NamedTuple):
    """Where datagrams are sent: an IPv4 address in 4 bytes or an IPv6 address in 16, and a port."""

    ip: bytes
    port: int

    def __str__(self) -> str:
        host = ipaddress.ip_address(self.ip)
        return f"{host}:{self.port}" if host.version == 4 else f"[{host}]:{self.port}"


class Contact(msgspec.Struct, frozen=True, array_like=True):
    """A node, as it is known to others and travels in messages."""

    id: IdBytes
    ip: IpBytes
    port: Port

    @property
    def address(self) -> Address:
        return Address(self.ip, self.port)


def node_id(public_key: bytes) -> bytes:
    """The id of the node that has this public key. Nobody can choose it freely without searching for a key."""
    return sha256(b"ravnest node " + public_key).digest()[:ID_BYTES]


def key_id(key: bytes) -> bytes:
    """The place of a key in the space of ids."""
    return sha256(b"ravnest key " + key).digest()[:ID_BYTES]


def number(one: bytes) -> int:
    """An id as the number that distances are computed with."""
    return int.from_bytes(one, "big")


def distance(one: bytes, other: bytes) -> int:
    """The exclusive or of two ids."""
    return number(one) ^ number(other)


@lru_cache(maxsize=4096)
def network_of(ip: bytes) -> bytes | None:
    """The network whose addresses one person easily has: 24 bits of IPv4, 48 of IPv6. None for a local address.

    Limits that hold for a network do not hold for local addresses, since several machines of one home share them.
    """
    address = _parsed(ip)
    if address is None or not _is_global(address):
        return None
    return ip[:3] if address.version == 4 else ip[:6]


@lru_cache(maxsize=4096)
def may_be_told(ip: bytes, teller_ip: bytes) -> bool:
    """Whether to believe a teller that a node lives at `ip`.

    A node of the internet must not send anybody into a home's own network: a local address is believed only from a
    teller that has one itself. What is no address of one machine (multicast, 0.0.0.0) is never believed.
    """
    address, teller = _parsed(ip), _parsed(teller_ip)
    if address is None or teller is None:
        return False
    if address.is_multicast or address.is_unspecified or (address.is_reserved and not address.is_loopback):
        return False
    return _is_global(address) or not _is_global(teller)


def _parsed(ip: bytes) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    if len(ip) not in {4, 16}:
        return None
    address = ipaddress.ip_address(ip)
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return None  # each address has one form: the edge turns a mapped one into its four bytes
    return address


def _is_global(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    return address.is_global
