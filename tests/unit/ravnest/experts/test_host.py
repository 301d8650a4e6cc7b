from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ravnest.experts import host as host_module
from ravnest.experts.announcements import caller_entry, claim_entries, host_entry
from ravnest.experts.claims import OTHERS_LOOKS, Kept
from ravnest.experts.expert_files import ExpertFiles
from ravnest.experts.grid import MOST_TERM, Claim, Expert, HostNews, Listens, member_name
from ravnest.experts.host import LOOK_S, ExpertHost
from ravnest.experts.kept_copies import KeptCopies
from ravnest.experts.messages import Answer, Backward, Copy, CopyKept, Forward, Hello, Refused, Welcome, codec
from ring_allreduce import TransportError
from ring_allreduce.transport import InProcessNetwork, Lane, Message, PeerAddress
from tests.support.experts import WIDTH, TableContents, TableOfTest, small_grid

TOKEN = bytes(16)
CONFIG = small_grid(copy_every_s=1e-6, checkpoint_every_s=1e6)
LEFT: list[Expert] = [(0, 0), (0, 1)]
RIGHT: list[Expert] = [(1, 0), (1, 1)]


class Network(InProcessNetwork):
    """Calls `on_poll` whenever somebody polls, so that others can answer who waits."""

    on_poll: Callable[[], None] | None = None

    def deliver_due(self) -> None:
        called, self.on_poll = self.on_poll, None
        if called is not None:
            called()
            self.on_poll = called
        super().deliver_due()


def proof_of(table: TableOfTest, token: bytes = TOKEN) -> bytes:
    return replace(CONFIG.places, token=token).proof_of(table.public_key)


class Town:
    """Hosts and one caller that share a table and a network without sockets."""

    def __init__(self) -> None:
        self.contents, self.network = TableContents(), Network()
        table = TableOfTest(self.contents)
        self.caller = self.network.endpoint(member_name("caller", table.identity.public_key), codec())
        own = Listens(self.caller.name, "127.0.0.1", 1, 1, proof=proof_of(table))
        table.run(lambda node: node.store(caller_entry(CONFIG.places, own)))
        self.lines: list[str] = []

    def host(
        self,
        wanted: list[Expert],
        *,
        most: int = 4,
        copies: int = 4,
        folder: Path | None = None,
        table: TableOfTest | None = None,
        look_s: float = 0.0,
    ) -> ExpertHost:
        table = table or TableOfTest(self.contents)
        endpoint = self.network.endpoint(member_name("host", table.identity.public_key), codec())
        endpoint.address = PeerAddress("in-process", 1, 1)  # what the table says has ports
        self.caller.connect({endpoint.name: endpoint.address})
        return ExpertHost(
            CONFIG,
            endpoint,
            table,
            token=TOKEN,
            most_experts=most,
            copies=KeptCopies(copies, 10_000),
            wanted=wanted,
            folder=folder,
            look_s=look_s,
            report=self.lines.append,
        )

    def dies(self, host: ExpertHost) -> None:
        """Its records expire, and it answers nobody."""
        slots = self.contents.records[CONFIG.places.hosts_key]
        self.contents.forget(next(author for author, member in slots if member == host.name.encode()))
        self.network.remove(host.name)

    def says(self, host: ExpertHost, message: Message, *tensors: torch.Tensor) -> list[Message]:
        self.caller.send(host.name, Lane.PIPELINE, message, tensors)
        host.step()
        host.step()
        return [one.message for one in self.caller.poll(0.0)]


def steps(*hosts: ExpertHost, times: int = 3) -> None:
    for _ in range(times):
        for host in hosts:
            host.step()


def news(at: Listens) -> HostNews:
    return HostNews(at, 1, 1, 0.0, 0.0, 0)


def backward(expert: Expert, updates: int = 0) -> tuple[Message, torch.Tensor, torch.Tensor]:
    return Backward(call=1, expert=expert, updates=updates), torch.randn(2, WIDTH), torch.randn(2, WIDTH)


def test_a_host_claims_what_it_wants_announces_it_and_answers_callers() -> None:
    town = Town()
    host = town.host(LEFT, most=2)
    steps(host)
    assert set(host.experts) == set(LEFT)
    assert town.says(host, Hello()) == [Welcome()]
    (answer,) = town.says(host, Forward(call=5, expert=(0, 1), training=True), torch.randn(3, WIDTH))
    assert isinstance(answer, Answer)
    assert (answer.call, answer.updates) == (5, 0)
    (refused,) = town.says(host, Forward(call=6, expert=(1, 1), training=True), torch.randn(3, WIDTH))
    assert refused == Refused(call=6, why="not here")
    assert host.news().experts == 2


def test_two_hosts_share_a_grid_and_keep_copies_for_each_other() -> None:
    town = Town()
    left, right = town.host(LEFT, most=2), town.host(RIGHT, most=2)
    steps(left, right)
    town.says(left, *backward((0, 1)))
    steps(left, right)
    assert (set(left.experts), set(right.experts)) == (set(LEFT), set(RIGHT))
    assert right.copies[0, 1] == Kept(1, 1)
    assert set(left.copies) == set(RIGHT)


def test_the_stand_by_goes_on_from_the_last_copy_when_a_host_has_died() -> None:
    town = Town()
    left, right = town.host(LEFT), town.host(RIGHT)
    steps(left, right)
    town.says(left, *backward((0, 1)))
    steps(left, right)
    learned = left.experts[0, 1].state()
    town.dies(left)
    steps(right)
    assert set(right.experts) == {*LEFT, *RIGHT}
    assert right.figures.began["copy"] == 2
    heir = right.experts[0, 1]
    assert heir.kept == Kept(2, 1)
    assert all(torch.equal(one, learned[name]) for name, one in heir.state().items())


def test_what_one_look_misses_is_not_taken_over() -> None:
    town = Town()
    town.contents.now_s = 1e12
    left, right = town.host(LEFT), town.host(RIGHT)
    steps(left, right)
    town.contents.hidden = {CONFIG.places.prefix_key(()), CONFIG.places.prefix_key((0,))}
    steps(right, times=OTHERS_LOOKS + 3)
    assert set(right.experts) == set(RIGHT)


class Slow(TableOfTest):
    """A node whose looks end when `end` says so."""

    looks = 0
    looking: tuple[partial[Any], Future[Any]] | None = None

    def run(self, work: Callable[..., Any]) -> Future[Any]:
        if not isinstance(work, partial):  # something is said
            return super().run(work)
        self.looks += 1
        self.looking = work, Future()
        return self.looking[1]

    def end(self) -> None:
        assert self.looking is not None
        work, future = self.looking
        future.set_result(super().run(work).result())


def test_a_look_that_takes_long_is_followed_by_a_pause_as_long(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr(host_module, "time", SimpleNamespace(monotonic=lambda: now_s, time=lambda: 0.0))
    town = Town()
    table = Slow(town.contents)
    host = town.host(LEFT, table=table, look_s=LOOK_S)
    pauses = []
    for took_s in (0.0, 0.4 * LOOK_S, 3 * LOOK_S):
        host.step()
        looks = table.looks
        now_s += took_s
        table.end()
        ended_s = now_s
        while table.looks == looks:
            host.step()
            now_s += LOOK_S / 16
        pauses.append(now_s - LOOK_S / 16 - ended_s)
    assert pauses == pytest.approx([LOOK_S, 0.6 * LOOK_S, 3 * LOOK_S], abs=LOOK_S / 8)


def test_of_two_hosts_that_claim_one_expert_one_gives_it_up() -> None:
    town = Town()
    hosts = [town.host([(0, 0)], most=1) for _ in range(2)]
    for host in hosts:
        host.step()
    for host in hosts:
        host.step()
    steps(*hosts)
    assert sum((0, 0) in host.experts for host in hosts) == 1


def test_who_leaves_hands_its_experts_over_with_what_they_have_learned(tmp_path: Path) -> None:
    town = Town()
    left, right = town.host(LEFT, folder=tmp_path), town.host(RIGHT)
    steps(left, right)
    town.says(left, *backward((0, 0)))
    learned = left.experts[0, 0].state()
    town.network.on_poll = lambda: steps(right, times=1)
    left.serve(seconds=0.0)
    assert (dict(left.experts), left.figures.handed_over) == ({}, 2)
    assert set(right.experts) == {*LEFT, *RIGHT}
    assert right.figures.began["handed over"] == 2
    assert all(torch.equal(one, learned[name]) for name, one in right.experts[0, 0].state().items())
    assert ExpertFiles(tmp_path, CONFIG.places).stored()[0, 0] == Kept(1, 1)
    steps(right)
    assert set(right.experts) == {*LEFT, *RIGHT}


def test_who_leaves_answers_those_who_ask_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_module, "LEAVE_S", 0.1)
    town = Town()
    left, right = town.host(LEFT), town.host(RIGHT)
    steps(left, right)
    town.caller.send(left.name, Lane.PIPELINE, Forward(call=1, expert=(0, 0), training=True), [torch.randn(2, WIDTH)])
    left.serve(seconds=0.0)  # nobody takes its experts
    assert [one.message for one in town.caller.poll(0.0)] == [Refused(call=1, why="not here")]


def test_who_leaves_offers_an_expert_to_the_next_host_and_says_what_nobody_takes() -> None:
    town = Town()
    left, right = town.host(LEFT), town.host(RIGHT, most=3)
    steps(left, right)
    town.network.on_poll = lambda: steps(right, times=1)
    left.serve(seconds=0.0)
    assert (len(left.experts), len(right.experts)) == (1, 3)
    assert any("1 experts were handed to nobody" in line for line in town.lines)


def test_nobody_is_handed_more_than_it_takes_and_strangers_hand_nothing() -> None:
    town = Town()
    left, right = town.host(LEFT), town.host(RIGHT, most=2)
    steps(left, right)
    state = left.experts[0, 0].state()
    message = Copy(expert=(0, 0), term=1, updates=1, names=tuple(state), take_over=True)
    assert town.says(right, message, *state.values()) == []  # the caller is no host
    line = town.network.find(left.name)
    assert line is not None
    line.send(right.name, Lane.BULK, message, list(state.values()))
    steps(right, times=1)
    kept = [one.message for one in line.poll(0.0) if isinstance(one.message, CopyKept)]
    assert CopyKept(expert=(0, 0), updates=1, kept=False, take_over=True, taken_over=False) in kept
    assert not any(one.taken_over for one in kept)


def test_a_copy_that_cannot_be_used_is_reported_and_the_expert_begins_anew() -> None:
    town = Town()
    left, right = town.host(LEFT), town.host(RIGHT)
    steps(left, right)
    line = town.network.find(left.name)
    assert line is not None
    broken = Copy(expert=(0, 0), term=9, updates=9, names=("weights.other",))
    line.send(right.name, Lane.BULK, broken, [torch.zeros(2)])
    steps(right, times=1)
    town.dies(left)
    steps(right, times=OTHERS_LOOKS + 4)
    assert right.figures.began["fresh"] >= 3
    assert any("0.0: the copy cannot be used" in line for line in town.lines)


def test_who_hosts_an_expert_and_lies_costs_another_host_no_checkpoint_of_its_own(tmp_path: Path) -> None:
    town = Town()
    right = town.host([*LEFT, *RIGHT], folder=tmp_path)
    steps(right)
    town.says(right, *backward((0, 0)))
    right.checkpoint()
    learned = right.experts[0, 0].state()
    town.dies(right)

    liar, right = town.host([(0, 0)], most=1), town.host(RIGHT, folder=tmp_path)
    steps(liar, right)
    line = town.network.find(liar.name)
    assert line is not None
    for over in (True, False):
        nonsense = Copy(expert=(0, 0), term=9, updates=9, names=("weights.other",), take_over=over)
        line.send(right.name, Lane.BULK, nonsense, [torch.zeros(2)])
        steps(right, times=1)
    town.dies(liar)
    steps(right, times=OTHERS_LOOKS)
    assert len([line for line in town.lines if "0.0: the" in line and "cannot be used" in line]) == 2
    assert all(torch.equal(one, learned[name]) for name, one in right.experts[0, 0].state().items())


def test_checkpoints_are_written_and_begun_from(tmp_path: Path) -> None:
    town = Town()
    host = town.host(LEFT, most=2, folder=tmp_path)
    steps(host)
    town.says(host, *backward((0, 1)))
    host.checkpoint()
    assert ExpertFiles(tmp_path, CONFIG.places).stored()[0, 1] == Kept(1, 1)
    again = Town()
    heir = again.host(LEFT, most=2, folder=tmp_path)
    steps(heir)
    assert heir.figures.began["checkpoint"] == 2
    assert heir.experts[0, 1].updates == 1


def test_a_checkpoint_of_another_kind_is_reported_once_and_the_expert_begins_anew(tmp_path: Path) -> None:
    ExpertFiles(tmp_path, CONFIG.places).write((0, 1), {"weights.other": torch.zeros(2)}, Kept(1, 1))
    town = Town()
    host = town.host(LEFT, most=2, folder=tmp_path)
    steps(host, times=5)
    assert host.figures.began == {"fresh": 2}
    assert len([line for line in town.lines if "0.1: the checkpoint cannot be used" in line]) == 1


def test_a_gradient_is_refused_when_its_expert_has_gone() -> None:
    town = Town()
    host = town.host(LEFT, most=2)
    steps(host)
    (refused,) = town.says(host, *backward((1, 1)))
    assert isinstance(refused, Refused)
    assert host.work.refused == {"not here": 1}


@pytest.mark.parametrize("names", [("a", "a"), ("a",)])
def test_copies_whose_names_do_not_fit_their_tensors_are_dropped(names: tuple[str, ...]) -> None:
    town = Town()
    left, right = town.host(LEFT), town.host(RIGHT)
    steps(left, right)
    line = town.network.find(left.name)
    assert line is not None
    before = dict(right.copies)
    line.send(right.name, Lane.BULK, Copy(expert=(0, 0), term=99, updates=1, names=names), [torch.zeros(1)] * 2)
    steps(right, times=1)
    assert before.items() <= right.copies.items()
    assert right.copies.get((0, 0)) != Kept(99, 1)


@pytest.mark.parametrize("host", ["%", "a b", "\x00"])
def test_an_announcement_of_no_address_stops_nobody(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    town = Town()
    left = town.host(LEFT, most=2)
    stranger = TableOfTest(town.contents)
    listens = Listens(member_name("stranger", stranger.public_key), host, 1, 1, proof=proof_of(stranger))
    stranger.run(lambda node: node.store(caller_entry(CONFIG.places, listens)))
    endpoint = town.network.find(left.name)
    assert endpoint is not None
    connect = endpoint.connect

    def as_zeromq_does(peers: dict[str, PeerAddress]) -> None:
        if any(one.host == host for one in peers.values()):
            raise TransportError(f"cannot connect: {host!r}")
        connect(peers)

    monkeypatch.setattr(endpoint, "connect", as_zeromq_does)
    steps(left, times=5)
    assert set(left.experts) == set(LEFT)
    assert len([line for line in town.lines if "cannot be reached" in line]) == 1  # and not at each look


def test_a_claim_of_a_stranger_takes_no_expert_whatever_it_says() -> None:
    town = Town()
    left = town.host(LEFT, most=2)
    steps(left)
    lines = list(town.lines)
    for token in (bytes(15) + b"x", TOKEN):
        other = TableOfTest(town.contents)
        name = member_name("other", other.public_key)
        at = Listens(name, "127.0.0.1", 1, 1, proof=proof_of(other, token))
        greatest = claim_entries(CONFIG.places, [(0, 0)], {(0, 0): Claim(MOST_TERM, 0, name)})
        other.run(lambda node, at=at, said=greatest: node.store(host_entry(CONFIG.places, news(at)), *said))
        steps(left)
        if token != TOKEN:
            assert (set(left.experts), town.lines) == (set(LEFT), lines)
    assert set(left.experts) == {(0, 1)}  # to a member, who knows the token, it gives the expert up


def test_only_who_hosts_an_expert_replaces_its_copy() -> None:
    town = Town()
    left, right = town.host(LEFT, most=2), town.host(RIGHT, most=2)
    steps(left, right)
    other = town.host([], most=1)
    steps(left, right, other)
    before = dict(right.copies)
    assert (0, 0) in {**before, **other.copies}
    line = town.network.find(other.name)
    assert line is not None
    lie = Copy(expert=(0, 0), term=999, updates=999, names=("weights.linear.bias",))
    line.send(right.name, Lane.BULK, lie, [torch.zeros(WIDTH)])
    steps(right)
    assert right.copies.get((0, 0)) != Kept(999, 999)


def test_a_host_without_room_refuses_copies_which_then_go_to_others() -> None:
    town = Town()
    left, full = town.host([*LEFT, *RIGHT]), town.host([], copies=1)
    steps(left, full, times=5)
    assert len(full.copies) == 1
    assert left.figures.copies_refused == 3
    other = town.host([])
    steps(left, full, other, times=5)
    assert {*full.copies, *other.copies} == {*LEFT, *RIGHT}


def test_a_copy_that_is_larger_than_an_expert_is_not_kept() -> None:
    town = Town()
    left, right = town.host(LEFT, most=2), town.host(RIGHT, most=2)
    steps(left, right)
    line = town.network.find(left.name)
    assert line is not None
    large = Copy(expert=(0, 0), term=1, updates=5, names=("weights.linear.bias",), take_over=False)
    line.send(right.name, Lane.BULK, large, [torch.zeros(10_000)])
    line.poll(0.0)
    steps(right, times=1)
    answers = [one.message for one in line.poll(0.0)]
    assert CopyKept(expert=(0, 0), updates=5, kept=False) in answers
    assert right.copies.get((0, 0)) != Kept(1, 5)
