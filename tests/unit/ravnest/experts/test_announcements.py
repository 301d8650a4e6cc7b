from typing import Any

from ravnest.dht import Entry, EntryStored, Stored
from ravnest.experts.announcements import (
    Announcer,
    Seen,
    caller_entry,
    claim_entries,
    host_entry,
    leading_to,
    look,
    member_withdrawal,
    withdrawals,
)
from ravnest.experts.grid import Claim, Expert, Grid, HostNews, Listens, member_name
from tests.support.experts import TableContents, TableOfTest

GRID = Grid("test", (2, 2, 2))


def seen(table: TableOfTest, *known: str) -> Seen:
    return table.run(lambda node: look(node, GRID, known)).result()  # type: ignore[no-any-return]


def store(table: TableOfTest, *entries: Entry) -> None:
    table.run(lambda node: node.store(*entries))


def test_one_look_shows_hosts_callers_and_claims() -> None:
    table = TableOfTest(TableContents())
    name = member_name("host", table.identity.public_key)
    claims: dict[Expert, Claim] = {(0, 1, 0): Claim(1, 0, name), (0, 1, 1): Claim(2, 5, name)}
    at = Listens(name, "127.0.0.1", 1, 2)
    news = HostNews(at, 2, 4, 0.0, 0.0, 0)
    store(table, *claim_entries(GRID, claims), host_entry(GRID, news), caller_entry(GRID, at))
    found = seen(table)
    assert {expert: one.value for expert, one in found.claims.items()} == claims
    assert [one.value for one in found.hosts.values()] == [news]
    assert [one.value for one in found.callers.values()] == [at]
    assert found.complete
    assert GRID.prefix_key((1,)) not in table.reads  # nobody hosts anything there


def test_a_withdrawal_leaves_the_prefixes_of_what_is_kept() -> None:
    table = TableOfTest(TableContents())
    name = member_name("host", table.identity.public_key)
    claims: dict[Expert, Claim] = {one: Claim(1, 0, name) for one in ((0, 1, 0), (0, 0, 0), (1, 1, 1))}
    store(table, *claim_entries(GRID, claims))
    store(table, *withdrawals(GRID, [(0, 1, 0), (1, 1, 1)], [(0, 0, 0)]))
    assert set(seen(table).claims) == set()  # of a host that nobody knows
    assert set(seen(table, name).claims) == {(0, 0, 0)}
    assert leading_to(claims) == {(0,), (1,), (0, 1), (0, 0), (1, 1)}
    assert table.reads[-1] == GRID.prefix_key((0, 0))


def test_members_withdraw() -> None:
    table = TableOfTest(TableContents())
    name = member_name("host", table.identity.public_key)
    at = Listens(name, "127.0.0.1", 1, 2)
    store(table, caller_entry(GRID, at))
    store(table, member_withdrawal(GRID.callers_key, name))
    assert seen(table).callers == {}


class Doubting(TableOfTest):
    """A node whose table refuses what it stores as `why`, if anything."""

    why: Stored | None = Stored.INVALID

    async def store(self, *entries: Entry, **options: Any) -> tuple[EntryStored, ...]:
        (*stored,) = await super().store(*entries, **options)
        return tuple(EntryStored(one.kept, {self.why: 4} if self.why else {}, 1, 1) for one in stored)


def test_a_host_that_the_table_does_not_believe_says_so_once() -> None:
    table, lines = Doubting(TableContents()), list[str]()
    announcer = Announcer(table, lines.append)
    said: list[Stored | None] = [Stored.INVALID, Stored.INVALID, None, Stored.FULL, Stored.INVALID]
    for number, table.why in enumerate(said):
        announcer.say([Entry(b"k", b"%d" % number, b"v", 10.0)])
        assert len(table.contents.records.get(b"k", {})) == number  # it is said at the next look after it
        announcer.tend()
    announcer.say([Entry(b"k", b"last", b"v", 10.0)])
    announcer.end()
    assert len(table.contents.records[b"k"]) == 6
    assert ["is this machine's clock right?" in line for line in lines] == [True, True]
