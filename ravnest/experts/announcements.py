"""What members of a grid say in the hash table, and what one look at the table shows.

In: a node of the table, and who hosts or calls. Out: records that expire when their author is gone, and a `Seen`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from ravnest.dht import Entry, HashTable
from ravnest.experts.grid import Claim, Dated, Expert, Grid, HostNews, Listens, encoded

LIFETIME_S = 15.0
"""A record that its author does not renew ends after so long: then the author counts as dead. It renews after 5 s."""

TABLE_S = 5.0
"""Of one look at the table, and of one storing."""

SOMEBODY = b"\xc3"
"""The value below a prefix that is no whole expert: msgpack's true."""


@dataclass(frozen=True)
class Seen:
    """What the table says of one grid. complete: False when the time was over before all was read."""

    hosts: Mapping[str, Dated[HostNews]]
    callers: Mapping[str, Dated[Listens]]
    claims: Mapping[Expert, Dated[Claim]]
    complete: bool


async def look(table: HashTable, grid: Grid, known: Collection[str] = ()) -> Seen:
    """Read all that members say of a grid in the table, prefixes of which nobody hosts anything left out.

    known: hosts whose claims count though this look may miss what they say of themselves.
    """
    found = await table.get_many([grid.hosts_key, grid.callers_key], thorough=True, deadline_s=TABLE_S)
    hosts = grid.members(found[grid.hosts_key].records, HostNews)
    callers = grid.members(found[grid.callers_key].records, Listens)
    heard = {*hosts, *known}
    complete = all(one.complete for one in found.values())
    prefixes: list[Expert] = [()]
    claims: dict[Expert, Dated[Claim]] = {}
    for length in range(len(grid.sides)):
        keys = {grid.prefix_key(prefix): prefix for prefix in prefixes}
        found = await table.get_many(list(keys), thorough=True, deadline_s=TABLE_S) if keys else {}
        complete = complete and all(one.complete for one in found.values())
        if length == len(grid.sides) - 1:
            for key, prefix in keys.items():
                claims.update(grid.claims(prefix, found[key].records, heard))
        else:
            prefixes = [
                (*prefix, one)
                for key, prefix in keys.items()
                for one in sorted(grid.next_coordinates(prefix, found[key].records, heard))
            ]
    return Seen(hosts, callers, claims, complete)


def claim_entries(grid: Grid, claims: Mapping[Expert, Claim]) -> list[Entry]:
    """The records of a host's claims, and of the prefixes that lead to them. They are renewed until withdrawn."""
    entries = [
        Entry(grid.prefix_key(expert[:-1]), b"%d" % expert[-1], encoded(claim), LIFETIME_S, renewed=True)
        for expert, claim in claims.items()
    ]
    return entries + [
        Entry(grid.prefix_key(prefix[:-1]), b"%d" % prefix[-1], SOMEBODY, LIFETIME_S, renewed=True)
        for prefix in leading_to(claims)
    ]


def withdrawals(grid: Grid, gone: Iterable[Expert], kept: Iterable[Expert]) -> list[Entry]:
    """The records that withdraw the claims of `gone`, and the prefixes that lead to none of `kept`."""
    gone = list(gone)
    entries = [Entry(grid.prefix_key(expert[:-1]), b"%d" % expert[-1], b"", LIFETIME_S) for expert in gone]
    return entries + [
        Entry(grid.prefix_key(prefix[:-1]), b"%d" % prefix[-1], b"", LIFETIME_S)
        for prefix in leading_to(gone) - leading_to(kept)
    ]


def leading_to(experts: Iterable[Expert]) -> set[Expert]:
    """The prefixes of experts that have a next coordinate of their own to announce: those between root and expert."""
    return {expert[:length] for expert in experts for length in range(1, len(expert))}


def host_entry(grid: Grid, news: HostNews) -> Entry:
    """A host, renewed until it is withdrawn by `member_withdrawal`."""
    return Entry(grid.hosts_key, news.at.member.encode(), encoded(news), LIFETIME_S, renewed=True)


def caller_entry(grid: Grid, caller: Listens) -> Entry:
    """A caller, renewed until it is withdrawn."""
    return Entry(grid.callers_key, caller.member.encode(), encoded(caller), LIFETIME_S, renewed=True)


def member_withdrawal(key: bytes, member: str) -> Entry:
    """Withdraws a host or a caller."""
    return Entry(key, member.encode(), b"", LIFETIME_S)
