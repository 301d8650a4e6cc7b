from collections.abc import Callable

import msgspec
import pytest

from ravnest.dht.contacts import Contact, key_id
from ravnest.dht.messages import Find
from ravnest.dht.records import Record, signed_record
from ravnest.dht.search import MOST_PAGES, NEAREST, Search
from ravnest.simulator.hash_table import ChecksumIdentity
from tests.support.one_core import OneCore, contact

KEY = b"k"
A, B, C = contact(1000), contact(2000), contact(3000)


def record(author: str = "a", value: bytes = b"v", key: bytes = KEY, issued_s: float = 0.0) -> Record:
    return signed_record(ChecksumIdentity(author), key, b"", value, issued_s=issued_s, lifetime_s=600.0)


class Searching:
    def __init__(self, *contacts: Contact, thorough: bool = False, records: bool = True) -> None:
        self.one = OneCore(contacts)
        self.ends: list[float] = []
        self.search = Search(
            self.one.core,
            key_id(KEY),
            on_end=lambda _, now_s: self.ends.append(now_s),
            records=records,
            thorough=thorough,
            key=KEY if records else None,
        )
        self.search.begin(0.0)
        self.asked = {to: (to, message) for to, message in self.one.sent()}


def test_the_first_node_that_has_records_ends_a_search_and_the_hops_are_counted() -> None:
    searching = Searching(A)
    searching.one.found(searching.asked[A], contacts=[B])
    (second,) = searching.one.sent()
    searching.one.found(second, records=[record()])
    assert searching.ends == [0.1]
    search = searching.search
    assert (search.hops, search.requests, search.complete) == (2, 2, True)
    assert list(search.found.values()) == [record()]
    assert search.without == [A]


def test_a_thorough_search_asks_all_that_are_near_and_keeps_the_newest_of_each_author() -> None:
    searching = Searching(A, B, C, thorough=True)
    assert all(isinstance(message, Find) and message.fresh for _, message in searching.asked.values())
    searching.one.found(searching.asked[A], records=[record(value=b"old"), record("b")])
    searching.one.found(searching.asked[B], records=[record(value=b"new", issued_s=5.0)])
    assert searching.ends == []
    searching.one.found(searching.asked[C])
    assert searching.ends == [0.1]
    assert {one.value for one in searching.search.found.values()} == {b"new", b"v"}


def test_what_does_not_fit_into_one_answer_is_asked_for_and_holes_are_filled() -> None:
    everything = [record(str(number)) for number in range(7)]
    searching = Searching(A)
    searching.one.found(searching.asked[A], records=everything[:3], total=7)
    pages = searching.one.sent()
    assert [message.skip for _, message in pages if isinstance(message, Find)] == [3, 6]
    searching.one.found(pages[1], records=everything[6:], total=7)
    searching.one.found(pages[0], records=everything[3:5], total=7)
    (hole,) = searching.one.sent()
    assert isinstance(hole[1], Find)
    assert hole[1].skip == 5
    searching.one.found(hole, records=everything[5:6], total=7)
    assert searching.ends == [0.1]
    assert len(searching.search.found) == 7


def test_a_page_that_does_not_come_ends_the_reading_of_that_node_only() -> None:
    searching = Searching(A)
    searching.one.found(searching.asked[A], records=[record()], total=2)
    end_s = searching.one.pass_all_time()
    assert end_s > 0
    assert (len(searching.ends), len(searching.search.found)) == (1, 1)


LIES: dict[str, Callable[[Record], Record]] = {
    "a record of another key": lambda _: record(key=b"other"),
    "a forged signature": lambda one: msgspec.structs.replace(one, signature=bytes(64)),
    "a changed value": lambda one: msgspec.structs.replace(one, value=b"w"),
}


@pytest.mark.parametrize("lie", LIES)
def test_who_lies_is_not_believed_in_anything_and_not_heard_again(lie: str) -> None:
    searching = Searching(A, B)
    searching.one.found(searching.asked[A], records=[record("b"), LIES[lie](record())], contacts=[C])
    assert searching.one.sent() == [], "nobody asks whom a liar names"
    assert not searching.one.core.table.holds(A)
    assert searching.one.core.requests.blacklist.is_unheard(A.address, 1.0)
    searching.one.found(searching.asked[B])
    assert searching.ends == [0.1]


def test_records_that_nobody_asked_for_are_a_lie() -> None:
    searching = Searching(A, records=False)
    searching.one.found(searching.asked[A], records=[record()])
    assert searching.one.core.requests.blacklist.is_unheard(A.address, 1.0)
    assert searching.search.found == {}


@pytest.mark.parametrize(("issued_s", "now_s"), [(0.0, 700.0), (100.0, 0.1)])
def test_an_expired_record_and_one_by_another_clock_are_no_lies_and_are_not_found(
    issued_s: float, now_s: float
) -> None:
    searching = Searching(A)
    searching.one.found(searching.asked[A], records=[record(issued_s=issued_s)], now_s=now_s)
    assert searching.search.found == {}
    assert searching.one.core.table.holds(A)
    assert not searching.one.core.requests.blacklist.is_unheard(A.address, now_s)


def test_a_liar_who_promises_thousands_of_records_is_read_to_an_end() -> None:
    searching, pages = Searching(A), 0
    searching.one.found(searching.asked[A], records=[record()], total=4096)
    while asked := searching.one.sent():
        pages += len(asked)
        for one in asked:
            searching.one.found(one, records=[record()], total=4096)
    assert pages == MOST_PAGES
    assert searching.ends == [0.1]


def test_another_node_at_the_address_is_no_answer() -> None:
    searching = Searching(A)
    searching.one.found(searching.asked[A], sender=B)
    assert searching.ends == [0.1]
    assert searching.search.nearest(NEAREST) == []


def test_a_search_without_anybody_ends_at_once_and_one_at_its_deadline_with_what_it_has() -> None:
    assert Searching().ends == [0.0]
    searching = Searching(A, B, thorough=True)
    searching.one.found(searching.asked[A], records=[record()])
    searching.search.end(2.0)
    assert (searching.ends, searching.search.complete) == ([2.0], False)
    assert len(searching.search.found) == 1
    searching.one.found(searching.asked[B], now_s=3.0)
    assert searching.ends == [2.0]
