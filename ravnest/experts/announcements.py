"""What members of a grid say in the hash table, and what one look at the table shows.

In: a node of the table, and who hosts or calls. Out: records that expire when their author is gone, and a `Seen`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass

from ravnest.dht import Entry, EntryStored, HashTable, Stored
from ravnest.experts.grid import Claim, Dated, Expert, Grid, HostNews, Listens, block_of, blocks, encoded
from ravnest.experts.table_thread import TableThread

LIFETIME_S = 15.0
"""A record that its author does not renew ends after so long: then the author counts as dead. It renews after 5 s. So
a member whose clock is further behind than the rest of that is never heard."""

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


def claim_entries(grid: Grid, changed: Collection[Expert], claims: Mapping[Expert, Claim]) -> list[Entry]:
    """What a host with these claims has to say when those of the experts in `changed` have come, gone or changed.

    The records of their blocks, and of the prefixes that lead to them. They are renewed; where nothing is left that
    the host claims, they are withdrawn.
    """
    said = {block: encoded(one) for block, one in blocks(claims).items()}
    said |= dict.fromkeys(leading_to(claims), SOMEBODY)
    return [
        Entry(grid.prefix_key(one[:-1]), b"%d" % one[-1], said.get(one, b""), LIFETIME_S, renewed=one in said)
        for one in sorted({*map(block_of, changed), *leading_to(changed)})
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


class Announcer:
    """Says things in the table, and tells a person when its nodes do not believe them. Belongs to one thread."""

    def __init__(self, table: TableThread, report: Callable[[str], None]) -> None:
        self._table, self._report = table, report
        self._to_say: list[Entry] = []
        self._under_way: list[Future[tuple[EntryStored, ...]]] = []
        self._refused = False

    def say(self, entries: list[Entry]) -> None:
        """Store these at the next `tend`: what is said of many experts at a time takes one search for each key."""
        self._to_say += entries

    def tend(self) -> None:
        """Begin to store what is to be said, and take up what has become of what was said before."""
        if self._to_say:
            entries, self._to_say = self._to_say, []
            self._under_way.append(self._table.run(lambda table: table.store(*entries, deadline_s=TABLE_S)))
        ended = [one for one in self._under_way if one.done()]
        self._under_way = [one for one in self._under_way if not one.done()]
        for stored in (one.result() for one in ended if one.exception() is None):
            refused = any(one.kept <= 1 and one.refused.get(Stored.INVALID) for one in stored)  # one: the own node
            if refused and not self._refused:
                self._report("the table's nodes refuse what this host says: is this machine's clock right?")
            self._refused = refused

    def end(self) -> None:
        """Wait until all is stored that was said; what cannot be is reported, and expires by itself."""
        self.tend()
        for storing in self._under_way:
            try:
                storing.result(2 * TABLE_S)
            except Exception as error:  # noqa: BLE001 - the records expire by themselves
                self._report(f"not withdrawn from the table: {error}")
