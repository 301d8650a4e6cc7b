from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from ravnest.dht import Entry, EntryStored, Record, Stored
from ravnest.dht.events import AnswerGet, Event, GetAsked, JoinAsked, StoreAsked
from ravnest.dht.node import HashTableNode
from ravnest.dht.records import VALUE_BYTES
from ravnest.experts.announcements import (
    Announcer,
    Seen,
    caller_entry,
    claim_entries,
    host_entry,
    leading_to,
    look,
    member_withdrawal,
)
from ravnest.experts.claims import FRESH_LOOKS, Claims
from ravnest.experts.grid import (
    BLOCK,
    MOST_TERM,
    MOST_UPDATES,
    Claim,
    ClaimedBlock,
    Expert,
    Grid,
    HostNews,
    Listens,
    member_name,
    value_of,
)
from ravnest.simulator.hash_table import ChecksumIdentity, Drawn, VirtualTable
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
    store(table, *claim_entries(GRID, claims, claims), host_entry(GRID, news), caller_entry(GRID, at))
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
    store(table, *claim_entries(GRID, claims, claims))
    kept: dict[Expert, Claim] = {(0, 0, 0): claims[0, 0, 0]}
    store(table, *claim_entries(GRID, [(0, 1, 0), (1, 1, 1)], kept))
    assert set(seen(table).claims) == set()  # of a host that nobody knows
    assert set(seen(table, name).claims) == {(0, 0, 0)}
    assert leading_to(claims) == {(0,), (1,), (0, 1), (0, 0), (1, 1)}
    assert table.reads[-1] == GRID.prefix_key((0, 0))


def test_one_record_says_what_a_host_has_of_a_block_and_only_blocks_that_have_changed_are_said_anew() -> None:
    table, grid = TableOfTest(TableContents()), Grid("test", (2, 40))
    name = member_name("host", table.identity.public_key)
    claims: dict[Expert, Claim] = {(1, last): Claim(1, last, name) for last in (0, 15, 16, 39)}
    entries = claim_entries(grid, claims, claims)
    assert [(one.key, one.subkey) for one in entries] == [
        (grid.prefix_key(()), b"1"),
        (grid.prefix_key((1,)), b"0"),
        (grid.prefix_key((1,)), b"1"),
        (grid.prefix_key((1,)), b"2"),
    ]
    store(table, *entries)
    found = table.run(lambda node: look(node, grid, [name])).result()
    assert {expert: one.value for expert, one in found.claims.items()} == claims
    del claims[1, 15], claims[1, 39]
    later = claim_entries(grid, [(1, 15), (1, 39)], claims)
    assert [(one.subkey, bool(one.value), one.renewed) for one in later] == [
        (b"1", True, True),
        (b"0", True, True),
        (b"2", False, False),
    ]
    store(table, *later)
    left = table.run(lambda node: look(node, grid, [name])).result()
    assert {expert: one.value for expert, one in left.claims.items()} == claims


@pytest.mark.slow
def test_a_look_at_thousands_of_experts_takes_few_requests() -> None:
    grid, claims = Grid("test", (64, 64)), dict[Expert, Claim]()
    table, identities = VirtualTable(lambda *_: 0.01), [ChecksumIdentity(str(number)) for number in range(4)]
    for number, identity in enumerate(identities):
        table.add(HashTableNode(identity, Drawn(str(number)).bytes))
    for number in range(1, 4):
        answered(table, number, partial(JoinAsked, peers=(table.address(0),), deadline_s=20.0))
    names, records = [member_name("host", identity.public_key) for identity in identities], 0
    for number, name in enumerate(names):
        host = Claims(name, 1024)
        for _ in range(FRESH_LOOKS):
            host.looked(list(grid.experts()), claims, {}, {})
        claims |= host.own
        entries = tuple(replace(one, lifetime_s=600.0) for one in claim_entries(grid, host.own, host.own))
        answered(table, number, partial(StoreAsked, entries=entries, deadline_s=60.0))
        records += len(entries)
    found, requests = dict[Expert, Claim](), 0
    for prefixes in ([()], list(grid.prefixes())):
        keys = {grid.prefix_key(prefix): prefix for prefix in prefixes}
        answer = answered(table, 0, partial(GetAsked, keys=tuple(keys), deadline_s=60.0, thorough=True))
        assert isinstance(answer, AnswerGet)
        requests += sum(one.requests for one in answer.found.values())
        for key, prefix in keys.items() if prefixes != [()] else ():
            found |= {
                expert: one.value for expert, one in grid.claims(prefix, answer.found[key].records, names).items()
            }
    assert found == claims
    assert len(claims) == 4096
    assert records <= 256 + 4 * 64  # blocks, and first coordinates of each host
    assert requests <= 600


def answered(table: VirtualTable, node: int, event: Callable[[int], Event]) -> object:
    call = table.ask(node, event)
    while call not in table.answers:
        table.run_until(table.now_s + 0.05)
    return table.answers.pop(call)[1]


def test_the_largest_record_of_a_block_is_one_that_the_table_keeps() -> None:
    name = member_name("h" * 40, bytes(32))
    claims: dict[Expert, Claim] = {(1008 + one,): Claim(MOST_TERM, MOST_UPDATES, name) for one in range(BLOCK)}
    (entry,) = claim_entries(Grid("test", (1024,)), claims, claims)
    assert len(entry.value) <= VALUE_BYTES
    assert value_of(Record(entry.key, b"", entry.value, bytes(32), 0.0, 1.0, bytes(64)), ClaimedBlock) is not None


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
