"""How a node answers requests: proofs of its id, contacts and records, and what it keeps for others. Pure.

Whoever wants something kept has to show a token, which this node gave to the same address in an answer a few minutes
before. So nobody stores in the name of an address that is not his, and this node remembers no asker.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b

from ravnest.dht.contacts import Address, node_id
from ravnest.dht.messages import (
    MOST_NAMED,
    MOST_OF_KEY,
    TOKEN_BYTES,
    Find,
    Found,
    Ping,
    Pong,
    Store,
    StoreAnswer,
    fitting,
    pong_part,
)
from ravnest.dht.records import Identity, Rules
from ravnest.dht.routing import RoutingTable
from ravnest.dht.store import RecordStore, Stored

TOKEN_S = 300.0
"""A token counts for at least so long, and at most twice as long."""

REPUBLISH_S = 1800.0
"""A record that nobody has stored again for so long (up to half as long more, by chance) is stored again by a node that
keeps it, so that it stays with the nearest nodes as nodes come and go."""


class Tokens:
    """Says without remembering anybody whether an address has asked before."""

    def __init__(self, draw: Callable[[int], bytes]) -> None:
        self._draw = draw
        self._secrets = (draw(16), draw(16))
        self._changes_s: float | None = None

    def of(self, address: Address, now_s: float) -> bytes:
        """The token for this address."""
        self._change(now_s)
        return _token(self._secrets[0], address)

    def is_valid(self, token: bytes, address: Address, now_s: float) -> bool:
        """Whether the token was given to this address not long ago."""
        self._change(now_s)
        return any(token == _token(secret, address) for secret in self._secrets)

    def _change(self, now_s: float) -> None:
        if self._changes_s is None:
            self._changes_s = now_s + TOKEN_S
        while now_s >= self._changes_s:
            idle = now_s >= self._changes_s + TOKEN_S
            self._secrets = (self._draw(16), self._draw(16) if idle else self._secrets[0])
            self._changes_s = now_s + TOKEN_S


def _token(secret: bytes, address: Address) -> bytes:
    return blake2b(address.ip + address.port.to_bytes(2, "big"), digest_size=TOKEN_BYTES, key=secret).digest()


class Answers:
    """What this node says when it is asked."""

    def __init__(
        self, identity: Identity, table: RoutingTable, store: RecordStore, rules: Rules, draw: Callable[[int], bytes]
    ) -> None:
        self._identity = identity
        self._own_id = node_id(identity.public_key)
        self._table = table
        self._store = store
        self._rules = rules
        self._draw = draw
        self._tokens = Tokens(draw)
        self.refused = 0

    def to_ping(self, asked: Ping) -> Pong:
        """The proof of this node's id."""
        signature = self._identity.sign(pong_part(asked.nonce, self._own_id, asked.sender))
        return Pong(nonce=asked.nonce, sender=self._own_id, public_key=self._identity.public_key, signature=signature)

    def to_find(self, asked: Find, address: Address, now_s: float) -> Found:
        """The contacts nearest to the target, and records of the key that has this id."""
        records, copies = self._store.find(asked.target, now_s, fresh=asked.fresh) if asked.records else ([], False)
        nearest = [] if asked.skip else self._table.closest(asked.target, MOST_NAMED + 1)
        named = [one for one in nearest if one.id != asked.sender]
        some_records, some_contacts = fitting(records[asked.skip :], named)
        return Found(
            nonce=asked.nonce,
            sender=self._own_id,
            token=self._tokens.of(address, now_s),
            total=min(len(records), MOST_OF_KEY),
            copies=copies,
            records=some_records,
            contacts=some_contacts,
        )

    def to_store(self, asked: Store, address: Address, now_s: float) -> StoreAnswer:
        """Keep what is valid and within the limits, and say what became of each record."""
        results = []
        has_token = self._tokens.is_valid(asked.token, address, now_s)
        for record in asked.records:
            if not has_token:
                result = Stored.NO_TOKEN
            elif self._rules.refusal(record, self._identity, now_s) is not None:
                result = Stored.INVALID
            else:
                republish_s = now_s + republish_after(self._draw)
                result = self._store.put(record, address.ip, now_s, republish_s, as_copy=asked.as_copies)
            self.refused += result not in {Stored.KEPT, Stored.SAME}
            results.append(result)
        return StoreAnswer(nonce=asked.nonce, sender=self._own_id, results=tuple(results))


def republish_after(draw: Callable[[int], bytes]) -> float:
    """After how many seconds a record is stored again; it differs, so that one of its holders comes before the rest."""
    return REPUBLISH_S * (1 + int.from_bytes(draw(2), "big") / 2**17)
