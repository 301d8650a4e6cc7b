import threading
import time
from concurrent.futures import Future

import pytest

from ravnest.dht import KeyFound
from ravnest.experts.announcements import claim_entries, host_entry
from ravnest.experts.beam_search import BeamSearch
from ravnest.experts.directory import Directory
from ravnest.experts.grid import Claim, Expert, Grid, HostNews, Listens, member_name
from tests.support.experts import TableContents, TableOfTest

GRID = Grid("test", (2, 2))
SCORES = [[0.0, 1.0], [0.0, 1.0]]


class Hosted:
    """A table in which one host has some experts."""

    def __init__(self, *experts: Expert) -> None:
        self.table = TableOfTest(TableContents())
        self.name = member_name("host", self.table.identity.public_key)
        self.had: set[Expert] = set()
        self.host(*experts)

    def host(self, *experts: Expert) -> None:
        """These, and what it had before."""
        self.had |= {*experts}
        at = Listens(self.name, "127.0.0.1", 1, 2)
        entries = claim_entries(GRID, self.had, {one: Claim(1, 0, self.name) for one in self.had})
        self.table.run(lambda node: node.store(host_entry(GRID, HostNews(at, 1, 1, 0, 0, 0)), *entries))


def opened(hosted: Hosted) -> Directory:
    """A directory that has looked for hosts once."""
    looked = threading.Event()
    directory = Directory(hosted.table, GRID, looked.set)
    assert looked.wait(10.0)
    return directory


@pytest.fixture
def hosted() -> Hosted:
    return Hosted((0, 0), (1, 0))


def test_the_best_hosted_experts_are_found_with_their_hosts(hosted: Hosted) -> None:
    directory = opened(hosted)
    try:
        found = directory.find(BeamSearch([SCORES], width=2, best=4), {hosted.name})
        assert found == [[((1, 0), hosted.name), ((0, 0), hosted.name)]]
        assert directory.find(BeamSearch([SCORES], width=2, best=4), {"another"}) == [[]]
        assert directory.count({hosted.name}) == 2
    finally:
        directory.close()


def test_what_is_known_is_read_quickly_then_thoroughly_and_not_again_for_a_while(hosted: Hosted) -> None:
    directory = opened(hosted)
    wanted = [GRID.prefix_key(one) for one in ((), (0,), (1,))]
    try:
        directory.find(BeamSearch([SCORES], width=2, best=1), {hosted.name})
        assert sorted(key for key in hosted.table.reads if key != GRID.hosts_key) == wanted
        assert not [key for key in hosted.table.thorough_reads if key != GRID.hosts_key]
        for _ in range(5):
            directory.find(BeamSearch([SCORES], width=2, best=1), {hosted.name})
        assert sorted(key for key in hosted.table.reads if key != GRID.hosts_key) == sorted(2 * wanted)
        assert sorted(key for key in hosted.table.thorough_reads if key != GRID.hosts_key) == wanted
    finally:
        directory.close()


def test_who_is_told_that_an_expert_is_gone_reads_again(hosted: Hosted) -> None:
    directory = opened(hosted)
    try:
        for _ in range(2):  # at first, and thoroughly
            directory.find(BeamSearch([SCORES], width=2, best=1), {hosted.name})
        hosted.host((1, 1))
        assert directory.find(BeamSearch([SCORES], width=2, best=1), {hosted.name}) == [[((1, 0), hosted.name)]]
        directory.forget((1, 0))
        assert directory.find(BeamSearch([SCORES], width=2, best=1), {hosted.name}) == [[((1, 1), hosted.name)]]
    finally:
        directory.close()


def test_claims_of_whoever_is_no_host_hide_nothing(hosted: Hosted) -> None:
    stranger = TableOfTest(hosted.table.contents)
    name = member_name("stranger", stranger.public_key)
    claims: dict[Expert, Claim] = {(one, other): Claim(9, 0, name) for one in (0, 1) for other in (0, 1)}
    stranger.run(lambda node: node.store(*claim_entries(GRID, claims, claims)))
    directory = opened(hosted)
    try:
        found = directory.find(BeamSearch([SCORES], width=2, best=2), {hosted.name, name})
        assert found == [[((1, 0), hosted.name), ((0, 0), hosted.name)]]
        assert directory.count({hosted.name}) == 2
    finally:
        directory.close()


def test_hosts_are_followed(hosted: Hosted) -> None:
    changes: list[float] = []
    directory = Directory(hosted.table, GRID, lambda: changes.append(time.monotonic()))
    directory.close()  # it has looked once by then
    assert len(changes) == 1
    assert directory.hosts[hosted.name].pipeline_port == 1
    assert directory.news[0].most_experts == 1


def test_a_node_that_is_closed_meanwhile_ends_the_following_of_hosts_without_a_word(
    hosted: Hosted, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[object] = []
    monkeypatch.setattr(threading, "excepthook", said.append)
    reading: Future[KeyFound] = Future()
    monkeypatch.setattr(hosted.table, "run", lambda _: reading)
    directory = Directory(hosted.table, GRID, lambda: None)
    reading.cancel()
    directory.close()
    assert said == []
