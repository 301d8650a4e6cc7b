"""What several threads touch holds in any order of their lines: some orders in each run, thousands in the slow tier."""

import math
import os
import threading
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch

from ravnest.stage import messages as m
from ravnest.stage import sends, state_sending
from ring_allreduce.transport import Lane, stats
from ring_allreduce.transport.shared import memory
from tests.races import interleaving
from tests.races.experts_in_threads import calls_that_are_asked_while_their_client_closes
from tests.races.interleaving import Interleaving
from tests.races.lines_in_threads import (
    last_words_before_lines_are_hung_up,
    lines_that_are_dialled_while_they_end,
    lines_that_two_threads_use_while_they_end,
)
from tests.races.stages_in_threads import (
    a_stage_that_computes_while_its_sockets_are_served,
    progress_that_is_taken_while_it_is_handed_on,
    tied_weights_that_arrive_while_they_are_adopted,
)

QUICK, SLOW_IN_ALL = 40, 10_000


class Box:
    """A counter, with a lock or without one. Its lines are those of this module."""

    def __init__(self, *, locked: bool) -> None:
        self._lock = threading.Lock() if locked else None
        self.count = 0

    def add(self) -> None:
        if self._lock is None:
            before = self.count
            self.count = before + 1
            return
        with self._lock:
            before = self.count
            self.count = before + 1


def counted(seed: int, *, locked: bool) -> tuple[int, int]:
    """What three threads that add five times each come to, and in how many steps."""
    schedule = Interleaving(seed, [SimpleNamespace(__file__=__file__)])  # type: ignore[list-item] # has what is read
    with schedule.locks():
        box = Box(locked=locked)

    def add() -> None:
        for _ in range(5):
            box.add()

    schedule.run(add, add, add)
    return box.count, schedule.steps


def test_a_race_is_found_and_found_again_by_its_seed() -> None:
    found = {seed: counted(seed, locked=False) for seed in range(20)}
    assert any(count < 15 for count, _ in found.values())
    assert {seed: counted(seed, locked=False) for seed in found} == found
    assert {counted(seed, locked=True)[0] for seed in found} == {15}


def test_threads_that_wait_for_each_other_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interleaving, "MOST_STEPS", 500)

    def ended(seed: int) -> str:
        schedule = Interleaving(seed, [SimpleNamespace(__file__=__file__)])  # type: ignore[list-item]
        with schedule.locks():
            a, b = threading.Lock(), threading.Lock()

        def one() -> None:
            a.acquire()
            b.acquire()
            b.release()
            a.release()

        def other() -> None:
            b.acquire()
            a.acquire()
            a.release()
            b.release()

        try:
            schedule.run(one, other)
        except AssertionError as error:
            return str(error)
        return "done"

    stuck = "nothing is done after 500 steps: the threads wait for each other"
    assert {ended(seed) for seed in range(20)} == {"done", stuck}


class Wire:
    """What Sends needs of an endpoint. It keeps what is sent, by peer."""

    def __init__(self) -> None:
        self.sent: dict[str, list[int]] = {}

    def send(self, peer: str, lane: Lane, message: m.RoundMerged, tensors: object = ()) -> None:
        self.sent.setdefault(peer, []).append(message.round)

    def wake(self) -> None:
        pass


def sends_while_reports_are_forgotten(seed: int) -> None:
    """The computing thread sends; the owner of the sockets flushes, and forgets what is for a driver that is gone."""
    schedule, wire = Interleaving(seed, [sends]), Wire()
    with schedule.locks():
        out = sends.Sends(wire, lambda *_: None, lambda: 0.0)  # type: ignore[arg-type] # has what is used
    out.flush()  # never by the thread of this test: the owner is who flushes last

    def compute() -> None:
        for number in range(6):
            out.send("peer", m.RoundMerged(round=number))
            out.tell(m.RoundMerged(round=number))

    def own() -> None:
        for _ in range(3):
            out.flush()
            out.forget_reports()

    schedule.run(compute, own)
    out.flush()
    assert wire.sent["peer"] == list(range(6))
    told = wire.sent.get(m.DRIVER, [])
    assert told == sorted(set(told))


def strangers_that_come_in_several_threads(seed: int) -> None:
    """Two threads count strangers while a third one asks for news."""
    schedule = Interleaving(seed, [stats])
    with schedule.locks():
        strangers = stats.Strangers()
    seen: list[dict[str, int]] = []

    def come() -> None:
        for number in range(4):
            strangers.came(f"192.0.2.{number % 2}")

    schedule.run(come, come, lambda: seen.extend(strangers.news(20.0 * number) for number in range(3)))
    assert strangers.counts == {"192.0.2.0": 4, "192.0.2.1": 4}
    for address in ("192.0.2.0", "192.0.2.1"):
        told = [news[address] for news in seen if address in news]
        assert told == sorted(set(told))


def state_that_changes_while_it_is_sent(seed: int) -> None:
    """The computing thread begins rounds and changes weights; the owner of the sockets sends what it has room for."""
    schedule = Interleaving(seed, [state_sending])
    with schedule.locks():
        sending = state_sending.StateSending()
    weights = {"now": 0}
    sent: list[tuple[int, int]] = []

    class File:
        """A file of two pieces, which keeps what its bytes were when it began once they are about to change."""

        def __init__(self, round_: int) -> None:
            self.name, self.round, self.left, self.kept, self.begun = f"f{round_}", round_, 2, None, weights["now"]

        @property
        def empty(self) -> bool:
            return not self.left

        def before(self, change: object) -> None:
            self.kept = weights["now"] if self.kept is None else self.kept

        def take(self) -> torch.Tensor:
            self.left -= 1
            sent.append((self.begun, weights["now"] if self.kept is None else self.kept))
            return torch.zeros(1, dtype=torch.uint8)

    def compute() -> None:
        for round_ in (1, 2):
            with sending.changing(None):  # type: ignore[arg-type] # the files do not look at it
                weights["now"] += 1
            sending.begin(round_, [File(round_)])  # type: ignore[list-item] # has what is used
            with sending.changing(None):  # type: ignore[arg-type]
                weights["now"] += 1

    def own() -> None:
        sending.wanted(1, 2)
        sending.wanted(2, 2)
        for _ in range(4):
            list(sending.pieces())

    schedule.run(compute, own)
    list(sending.pieces())
    assert [begun for begun, _ in sent] == [1, 1, 3, 3]
    assert all(begun == now for begun, now in sent)


def slots_that_are_let_go_of_in_another_thread(seed: int) -> None:
    """One thread reads bodies from slots and tells which are free; another lets go of what was read."""
    schedule = Interleaving(seed, [memory])
    slots, mapped = memory.SharedSlots(), memory.MappedSlots(1 << 16)
    held: list[list[memoryview]] = []
    told: list[int] = []

    def read() -> None:
        for number in range(5):
            slot, size, new = slots.put([memoryview(bytes([number] * 8))])
            if new is not None:
                mapped.add_segment(new, size)
                os.close(new)
            views = mapped.views(slot, [8])
            assert bytes(views[0]) == bytes([number] * 8)
            held.append(views)
            del views
            while mapped.released:
                free = mapped.released.popleft()
                told.append(free)
                slots.release([free])

    def let_go() -> None:
        for _ in range(5):
            schedule.give_way()
            if held:
                held.pop()

    schedule.run(read, let_go)
    held.clear()
    told += mapped.released
    assert len(told) == 5


STRUCTURES: dict[str, Callable[[int], None]] = {
    each.__name__: each
    for each in (
        sends_while_reports_are_forgotten,
        strangers_that_come_in_several_threads,
        state_that_changes_while_it_is_sent,
        slots_that_are_let_go_of_in_another_thread,
        lines_that_two_threads_use_while_they_end,
        lines_that_are_dialled_while_they_end,
        last_words_before_lines_are_hung_up,
        calls_that_are_asked_while_their_client_closes,
        a_stage_that_computes_while_its_sockets_are_served,
        tied_weights_that_arrive_while_they_are_adopted,
        progress_that_is_taken_while_it_is_handed_on,
    )
}


LONG_ONES = {
    "a_stage_that_computes_while_its_sockets_are_served": 60,
    "lines_that_two_threads_use_while_they_end": 200,
    "lines_that_are_dialled_while_they_end": 300,
    "last_words_before_lines_are_hung_up": 200,
}
"""So many schedules of these are tried in the slow tier, since one takes a twentieth to half a second."""


def slow_ones(name: str) -> int:
    """How many schedules of a structure are tried in the slow tier: SLOW_IN_ALL of all together."""
    others = math.ceil((SLOW_IN_ALL - sum(LONG_ONES.values())) / (len(STRUCTURES) - len(LONG_ONES)))
    return LONG_ONES.get(name, others)


def tried(name: str, seeds: range) -> None:
    """Try these schedules. An error says the seed that shows it again."""
    for seed in seeds:
        try:
            STRUCTURES[name](seed)
        except Exception as error:
            raise AssertionError(f"{name}({seed}): {type(error).__name__}: {error}") from error


@pytest.mark.parametrize("name", STRUCTURES)
def test_it_holds_in_some_orders(name: str) -> None:
    tried(name, range(QUICK // 4 if name in LONG_ONES else QUICK))


def test_the_slow_tier_tries_ten_thousand_orders() -> None:
    assert sum(map(slow_ones, STRUCTURES)) >= SLOW_IN_ALL


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", STRUCTURES)
def test_it_holds_in_thousands_of_orders(name: str) -> None:
    """CI tries the first quarter of them: its machine has little time."""
    tried(name, range(QUICK, QUICK + slow_ones(name) // (4 if "CI" in os.environ else 1)))
