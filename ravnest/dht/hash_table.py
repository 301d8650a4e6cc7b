"""A node of the hash table at work: UDP sockets, the clock, and what a program calls. For asyncio.

In: addresses, keys and values. Out: records, and how the table is. All decisions are HashTableNode's. Each wait has a
deadline, at which it ends with what there is.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any, TypeVar

from ravnest.dht.contacts import Address
from ravnest.dht.events import (
    AnswerGet,
    AnswerJoin,
    AnswerStore,
    Entry,
    EntryStored,
    Event,
    GetAsked,
    JoinAsked,
    KeyFound,
    MessageArrived,
    Send,
    StoreAsked,
    TimePassed,
)
from ravnest.dht.identity import new_identity
from ravnest.dht.messages import DATAGRAM_BYTES, decoded, encoded
from ravnest.dht.node import HashTableNode, Health
from ravnest.dht.records import Identity, Rules
from ravnest.dht.store import StoreLimits
from ravnest.dht.survey import Survey, surveyed
from ravnest.errors import InvalidInput, TableUnreachable

DEADLINE_S = 20.0
"""Of joining, getting and storing, unless something else is said."""

GRACE_S = 5.0
"""How much longer the answer is waited for, as a busy machine's clock may be late."""

RESOLVE_S = 10.0
"""For the name service to say where a peer is."""

ANYWHERE = {socket.AF_INET: "0.0.0.0:0", socket.AF_INET6: "[::]:0"}

SURVEY_SEARCHES = 16

MOST_TURNS = 256
"""Turns of the event loop for which a time-out is put off while datagrams that have come are read, one in each turn."""

SLEPT_S = 1.0
"""By so much the wall clock is ahead of the steady clock once the machine has slept, or its time was corrected."""

_Answer = TypeVar("_Answer", AnswerJoin, AnswerGet, AnswerStore)


def parsed_endpoint(text: str, key: str | None = None) -> tuple[str, int]:
    """The host and the port of "host:port" or "[IPv6 address]:port". Raises InvalidInput that names `key`."""
    host, colon, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise InvalidInput(f"expected host:port or [IPv6 address]:port, not {text!r}", key=key)
    if (":" in host) != bracketed:
        raise InvalidInput(f"expected an IPv6 address in brackets, as in [::1]:7700, not {text!r}", key=key)
    return (host[1:-1] if bracketed else host), int(port)


async def resolved(peers: Sequence[str], key: str | None = None) -> list[Address]:
    """The addresses of peers ("host:port"), all that the name service knows. Raises InvalidInput for a wrong one, and
    where the name service knows none of them: one that is gone keeps nobody from joining through the others."""
    loop = asyncio.get_running_loop()
    endpoints = [_endpoint_of_peer(peer, key) for peer in peers]
    asked = [loop.getaddrinfo(host, port, type=socket.SOCK_DGRAM) for host, port in endpoints]
    answers = await asyncio.gather(*(asyncio.wait_for(one, RESOLVE_S) for one in asked), return_exceptions=True)
    found: list[Address] = []
    unknown: InvalidInput | None = None
    for peer, answer in zip(peers, answers, strict=True):
        if isinstance(answer, OSError | TimeoutError | UnicodeError):
            unknown = InvalidInput(f"the name service does not know {peer!r}: {answer}", key=key)
        elif isinstance(answer, BaseException):
            raise answer
        else:
            found += [_address(address) for _, _, _, _, address in answer]
    if unknown is not None and not found:
        raise unknown
    return list(dict.fromkeys(found))


def _endpoint_of_peer(peer: str, key: str | None) -> tuple[str, int]:
    host, port = parsed_endpoint(peer, key)
    if port == 0:
        raise InvalidInput(f"expected the port at which the peer listens, not {peer!r}", key=key)
    return host, port


def _towards(addresses: Sequence[Address]) -> list[str]:
    """Where to listen, at any port, to reach these: for IPv4, IPv6 or both, as this machine has a way there."""
    found = {}
    for address in addresses:
        family = socket.AF_INET if len(address.ip) == 4 else socket.AF_INET6
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((socket.inet_ntop(family, address.ip), address.port))  # sends nothing
            found[family] = ANYWHERE[family]
    return list(found.values()) or [ANYWHERE[socket.AF_INET]]


class HashTable:
    """One node. Make it with `opened`, and close it."""

    def __init__(self, node: HashTableNode) -> None:
        self._node = node
        self._transports: dict[int, asyncio.DatagramTransport] = {}
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._call = count(1)
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = float("inf")
        self._closed = False
        self._offset_s = time.time() - time.monotonic()
        self._arrived = 0
        self.dropped = 0

    @classmethod
    async def opened(
        cls,
        listen: Sequence[str] | None,
        peers: Sequence[str] = (),
        *,
        identity: Identity | None = None,
        outwards_only: bool = False,
        rules: Rules | None = None,
        limits: StoreLimits | None = None,
        deadline_s: float = DEADLINE_S,
    ) -> HashTable:
        """Listen at these addresses ("address:port"; port 0 for any; IPv4, IPv6, or one of each) and join through
        any of the peers. Without peers a new table begins. None: at any port, by which the peers can be reached.

        identity: a new one without it. outwards_only: for a node that others cannot reach; it keeps nothing.
        Raises InvalidInput for a wrong address and TableUnreachable when no peer answers within `deadline_s`.
        """
        addresses = await resolved(peers, "peer")
        at = _towards(addresses) if listen is None else listen
        ip_bytes = frozenset(16 if ":" in parsed_endpoint(one, "listen")[0] else 4 for one in at)
        if peers and not any(len(one.ip) in ip_bytes for one in addresses):
            kind, other = ("IPv4", "IPv6") if 4 in ip_bytes else ("IPv6", "IPv4")
            message = f"expected a peer with an address of {kind}, as this node listens at {', '.join(at)}"
            raise InvalidInput(f"{message}; {', '.join(peers)} has {other} only", key="peer")
        node = HashTableNode(
            identity or new_identity(),
            secrets.token_bytes,
            listens=not outwards_only,
            rules=rules,
            limits=limits,
            ip_bytes=ip_bytes,
        )
        table = cls(node)
        try:
            for address in at:
                await table._listen(address)
            joined = await table._asked(lambda call: JoinAsked(call, tuple(addresses), deadline_s), deadline_s)
            assert isinstance(joined, AnswerJoin)
            if peers and not joined.reached:
                raise TableUnreachable(f"no peer answered: {', '.join(peers)}")
        except BaseException:
            await table.close()
            raise
        return table

    @property
    def id(self) -> bytes:
        return self._node.id

    @property
    def addresses(self) -> list[Address]:
        """Where this node listens."""
        return [_address(one.get_extra_info("sockname")) for one in self._transports.values()]

    async def get(self, key: bytes, *, thorough: bool = False, deadline_s: float = DEADLINE_S) -> KeyFound:
        """The records of a key; see `GetAsked` for `thorough`."""
        return (await self.get_many([key], thorough=thorough, deadline_s=deadline_s))[key]

    async def get_many(
        self, keys: Sequence[bytes], *, thorough: bool = False, deadline_s: float = DEADLINE_S
    ) -> Mapping[bytes, KeyFound]:
        """The records of many keys, which are looked for at the same time."""
        asked = tuple(keys)
        answer = await self._asked(lambda call: GetAsked(call, asked, deadline_s, thorough), deadline_s)
        assert isinstance(answer, AnswerGet)
        return answer.found

    async def store(self, *entries: Entry, deadline_s: float = DEADLINE_S) -> tuple[EntryStored, ...]:
        """Sign and store entries, and say for each how many nodes keep it. Raises InvalidInput for a wrong one."""
        answer = await self._asked(lambda call: StoreAsked(call, entries, deadline_s), deadline_s)
        assert isinstance(answer, AnswerStore)
        return answer.stored

    async def survey(self, *, deadline_s: float = DEADLINE_S) -> Survey:
        """How large the table is and how well it answers, by searches of random ids."""
        keys = [b"survey/" + secrets.token_bytes(16) for _ in range(SURVEY_SEARCHES)]
        found = await self.get_many(keys, thorough=True, deadline_s=deadline_s)
        return surveyed(found, self.health())

    def health(self) -> Health:
        """How this node is."""
        return self._node.health(self._now_s())

    async def close(self) -> None:
        """Stop listening; what waits is cancelled. What this node has stored stays with the others."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for transport in self._transports.values():
            transport.close()
        for future in self._calls.values():
            future.cancel()
        await asyncio.sleep(0)  # the loop closes the sockets in its next turn

    def arrived(self, datagram: bytes, sender: tuple[Any, ...]) -> None:
        """A datagram has come; what is no message is counted and dropped."""
        self._arrived += 1
        message = decoded(datagram) if len(datagram) <= DATAGRAM_BYTES else None
        if message is None or self._closed:
            self.dropped += 1
        else:
            self._handle(MessageArrived(_address(sender), message))

    def _now_s(self) -> float:
        """Seconds since 1970, by a clock that never goes back. It jumps ahead after the machine has slept."""
        now_s = self._offset_s + time.monotonic()
        ahead_s = time.time() - now_s
        if ahead_s > SLEPT_S:
            self._offset_s += ahead_s
            now_s += ahead_s
        return now_s

    async def _listen(self, endpoint: str) -> None:
        host, port = parsed_endpoint(endpoint, "listen")
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        if family in self._transports:
            raise InvalidInput("expected at most one address of IPv4 and one of IPv6", key="listen")
        loop = asyncio.get_running_loop()
        try:
            ((_, kind, _, _, address), *_) = await loop.getaddrinfo(
                host, port, family=family, type=socket.SOCK_DGRAM, flags=socket.AI_PASSIVE
            )
            with contextlib.ExitStack() as unless_used:
                listening = unless_used.enter_context(socket.socket(family, kind))
                if family is socket.AF_INET6:  # the same port of IPv4 has a socket of its own
                    listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                listening.setblocking(False)
                listening.bind(address)
                transport, _ = await loop.create_datagram_endpoint(lambda: _Datagrams(self), sock=listening)
                unless_used.pop_all()
        except OSError as error:
            raise InvalidInput(f"cannot listen at {endpoint}: {error.strerror or error}", key="listen") from error
        self._transports[family] = transport

    async def _asked(self, event: Callable[[int], JoinAsked | GetAsked | StoreAsked], deadline_s: float) -> object:
        if self._closed:
            raise InvalidInput("this node of the hash table is closed")
        call = next(self._call)
        future = self._calls[call] = asyncio.get_running_loop().create_future()
        try:
            self._handle(event(call))
            return await asyncio.wait_for(future, deadline_s + GRACE_S)
        finally:
            del self._calls[call]

    def _handle(self, event: Event) -> None:
        for instruction in self._node.handle(event, self._now_s()):
            if isinstance(instruction, Send):
                self._send(instruction)
            else:
                future = self._calls.get(instruction.call or 0)
                if future is not None and not future.done():
                    future.set_result(instruction)
        self._set_timer()

    def _send(self, sent: Send) -> None:
        family = socket.AF_INET if len(sent.address.ip) == 4 else socket.AF_INET6
        transport = self._transports.get(family)
        if transport is not None and not transport.is_closing():
            transport.sendto(encoded(sent.message), (socket.inet_ntop(family, sent.address.ip), sent.address.port))

    def _set_timer(self) -> None:
        wakes_s = self._node.wakes_s
        if wakes_s is None or wakes_s >= self._timer_s:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_s = wakes_s
        self._timer = asyncio.get_running_loop().call_later(max(0.0, wakes_s - self._now_s()), self._woken)

    def _woken(self, arrived: int = -1, turns: int = 0) -> None:
        """Time has passed; but what lies in the sockets of a process that runs late has come in time."""
        if self._closed:
            return
        if arrived != self._arrived and turns < MOST_TURNS:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(0.0, self._woken, self._arrived, turns + 1)
            return
        self._timer, self._timer_s = None, float("inf")
        self._handle(TimePassed())


class _Datagrams(asyncio.DatagramProtocol):
    def __init__(self, table: HashTable) -> None:
        self._table = table

    def datagram_received(self, data: bytes, addr: tuple[Any, ...]) -> None:
        self._table.arrived(data, addr)

    def error_received(self, exc: Exception) -> None:
        """A datagram did not reach anybody: the request runs into its time-out."""


def _address(name: tuple[Any, ...]) -> Address:
    """The address that Python's sockets call `name`; an IPv4 address that is mapped into IPv6 becomes IPv4 again."""
    host, port = str(name[0]).partition("%")[0], int(name[1])
    ip = socket.inet_pton(socket.AF_INET6 if ":" in host else socket.AF_INET, host)
    mapped = len(ip) == 16 and ip.startswith(bytes(10) + b"\xff\xff")
    return Address(ip[12:] if mapped else ip, port)
