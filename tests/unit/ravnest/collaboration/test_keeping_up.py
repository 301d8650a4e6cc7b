"""Who falls behind, and what it is told; the real programs play it in test_keeping_up_played.py."""

import pytest
import torch

from ravnest.collaboration import keeping_up as module
from ravnest.collaboration.keeping_up import JUDGED, MOST_TRIES, MOST_WAITING, KeepingUp
from ravnest.collaboration.packing import Packing
from ravnest.collaboration.people import Person
from ravnest.collaboration.transfers import Form, pieces
from ravnest.collaboration.visitor import Visitor
from tests.unit.ravnest.collaboration.lines_twin import LinesTwin

FORM = Form("g", torch.float32, 250_000)
AVERAGE = 1_000_000
STEP_S = 10.0


class World:
    """One volunteer, and steps of ten seconds."""

    def __init__(self) -> None:
        self.lines, self.step = LinesTwin(), 0
        self.keeping_up = KeepingUp(Packing([FORM]), self.lines.now)
        self.comes()

    def comes(self, key: str = "k") -> None:
        self.visitor = Visitor(self.step, 0.0, name="v", person=Person(key, "v"), joined=True)
        self.visitor.outgoing.put_state(pieces("state", 0, 0, [(FORM, torch.zeros(FORM.elements))]))
        self.visitor.takes_state, self.may_take = True, 0.0
        assert self.look() is None

    def look(self, **state: bool) -> tuple[str, bool] | None:
        return self.keeping_up.look(self.visitor, self.step, **state)

    def makes(self, steps: int = 1) -> tuple[str, bool] | None:
        """So many averages are made, unless it is put out before."""
        for _ in range(steps):
            self.step += 1
            self.lines.now_s += STEP_S
            self.visitor.outgoing.put(pieces("average", self.step, 0, [(FORM, torch.zeros(FORM.elements))]))
            if (found := self.look()) is not None:
                return found
        return None

    def takes(self, n_bytes: float) -> None:
        """It takes so many bytes more, in whole pieces, or all that there is."""
        outgoing = self.visitor.outgoing
        self.may_take += n_bytes
        while outgoing.taken_bytes < self.may_take and list(outgoing.due(1)):
            outgoing.got(outgoing.taken + 1)
        self.visitor.takes_state = outgoing.has_state

    def has_the_state(self) -> None:
        while self.visitor.takes_state:
            self.takes(1)


def test_who_has_caught_up_may_have_few_averages_waiting_and_who_has_not_many() -> None:
    world = World()
    assert world.makes(2 * MOST_WAITING) is None
    world.takes(1e9)
    world.visitor.caught_up = True
    assert world.makes(MOST_WAITING) is None
    assert world.keeping_up.look(world.visitor, world.step, 1) is None
    found = world.makes()
    assert found is not None
    reason, may_return = found
    assert (
        "more slowly than they are made: it took 0.554 Mbit/s, and the averages, every 10 s, are 0.8 Mbit/s" in reason
    )
    assert may_return
    assert world.keeping_up.look(world.visitor, world.step, 1) is None, "something is handed on to it"


def test_averages_that_wait_for_a_state_take_so_much_memory_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HELD_BYTES", 30 * AVERAGE)
    world = World()
    assert world.makes(28) is None
    found = world.makes()
    assert found is not None
    assert "more averages were made than can wait" in found[0]


@pytest.mark.parametrize(("share", "catches_up"), [(0.9, False), (1.1, True)])
def test_who_has_the_state_comes_nearer_or_never_will(share: float, catches_up: bool) -> None:
    world = World()
    assert world.makes(10) is None
    world.has_the_state()
    for _ in range(4 * JUDGED):
        if (found := world.makes()) is not None:
            break
        world.takes(share * AVERAGE)
    assert (found is None) == catches_up
    assert world.visitor.outgoing.had_all == catches_up


def test_who_is_late_with_the_state_is_put_out() -> None:
    world = World()
    found = world.look(state_is_late=True)
    assert found == ("it did not take the state in time", True)


def test_who_falls_behind_again_and_again_and_gives_nothing_is_told_not_to_come_back() -> None:
    world = World()
    for tries in range(1, MOST_TRIES + 1):
        found = world.look(state_is_late=True)
        assert found is not None
        assert found[1] == (tries < MOST_TRIES)
        world.keeping_up.left(world.visitor)
        world.comes()
    assert "it fell behind 3 times: its link or its machine is too slow for these steps" in found[0]
    found = world.look(state_is_late=True)
    assert found == ("it did not take the state in time", True), "who starts it again may try again"


def test_who_has_given_something_is_too_slow_for_the_first_time_again() -> None:
    world = World()
    for _ in range(2 * MOST_TRIES):
        world.visitor.gave = True
        assert world.look(state_is_late=True) == ("it did not take the state in time", True)
        world.comes()


def test_machines_that_stand_by_may_always_return_and_few_keys_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_REMEMBERED", 2)
    world = World()
    world.visitor.person = None
    for _ in range(2 * MOST_TRIES):
        assert world.look(state_is_late=True) == ("it did not take the state in time", True)
    for key in ("a", "a", "b", "c", "a"):
        world.comes(key)
        found = world.look(state_is_late=True)
        assert found is not None
        assert found[1]
