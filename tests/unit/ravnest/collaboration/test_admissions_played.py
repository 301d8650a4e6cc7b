"""Who joins takes the state from a machine that stands by, played by the real programs under a virtual clock."""

from collections.abc import Callable
from pathlib import Path

import pytest

from experiments.collaboration.virtual_network import Machine
from experiments.collaboration.virtual_world import PORT, VirtualWorld
from ravnest.collaboration import transfers
from ravnest.collaboration.messages import TakeMessage, TookMessage, TransferMessage

LINK, RATE = 60_000.0, 4.0
"""Bytes per second of every machine, for a gradient of 23 kB as float16, and a state of 137 kB; and samples per second
of each volunteer."""

STEPS, PEERS = 10, 3
TAKES = "and takes the state from"
FELL_BACK = "and takes it from this machine"


class Played:
    """Two backbone machines, of which one stands by, and three volunteers."""

    def __init__(self, folder: Path, *, delayed: bool = False, rank: int | None = None, wire: str = "float16") -> None:
        self.world = VirtualWorld(
            folder, steps=STEPS, target=16 * PEERS, width=600, delayed=delayed, rank=rank, wire=wire, latency_s=0.02
        )
        self.averages_meanwhile = 0
        """That reached the late one before it had the state."""

    def begin(self) -> None:
        world = self.world
        self.first = world.start_backbone(LINK, LINK, machines=2)
        self.helper = world.start_backbone(LINK, LINK, number=1, machines=2)
        assert world.net.run(lambda: any("stands by with" in line for line in world.told), 100.0)
        for at in range(PEERS):
            world.join(f"v{at}", RATE, LINK, LINK)

    def makes(self, steps: int) -> None:
        assert self.world.net.run(lambda: self.world.steps >= steps, 1000.0)

    def joins_late(self, happens: Callable[[], None] = lambda: None, after_s: float = 0.0) -> None:
        """Some seconds before an average. `happens`: so long after it was told to take the state elsewhere."""
        took, self.averages_meanwhile = False, 0

        def watch(direction: str, message: object) -> None:
            nonlocal took
            if isinstance(message, TakeMessage):
                self.world.net.at(after_s, happens)
            took |= isinstance(message, TookMessage)
            came = direction == "in" and isinstance(message, TransferMessage) and message.what == "average"
            self.averages_meanwhile += came and not took

        def join() -> None:
            self.world.join("late", RATE, LINK, LINK).watch = watch

        self.world.net.at(3.0, join)
        assert self.world.net.run(lambda: "late" in self.world.machines, 100.0)

    def ends(self, *left_out: Machine) -> None:
        """Let all come to the end, and look that they hold the same bytes, and that no step was missed."""
        world = self.world
        everyone = [one for one in (self.first, self.helper, *world.machines.values()) if one not in left_out]
        assert world.net.run(lambda: not any(one.alive for one in everyone), 2000.0)
        assert [one.error for one in everyone if not one.killed] == [None] * sum(not one.killed for one in everyone)
        hashes = {result.weights_hash for result in world.results.values()}
        hashes |= {one.given.weights for one in world.volunteers.values()}
        assert len(hashes) == 1
        assert [entry["step"] for entry in world.curve()] == list(range(1, STEPS + 1))

    def said(self, words: str) -> int:
        return sum(words in line for line in self.world.told)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfers, "PIECE_BYTES", 4096)


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize(
    ("delayed", "rank", "wire"),
    [(False, None, "float16"), (True, None, "float16"), (False, 2, "float16"), (False, None, "int8")],
)
def test_who_joins_late_has_the_bytes_of_all_others_from_its_first_step_on(
    tmp_path: Path, delayed: bool, rank: int | None, wire: str
) -> None:
    played = Played(tmp_path, delayed=delayed, rank=rank, wire=wire)
    with played.world.running():
        played.begin()
        played.makes(3)
        before = played.said(TAKES)
        played.joins_late()
        played.ends()
    assert played.said(TAKES) == before + 1
    assert not played.said(FELL_BACK)
    assert played.averages_meanwhile
    late = played.world.volunteers["late"].given
    assert late.visits == 1
    assert late.samples > 0


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("after_s", [0.0, 2.0])
@pytest.mark.parametrize("failure", ["killed", "cut off", "stands still", "not reached"])
def test_whatever_becomes_of_the_machine_that_hands_over_the_joiner_gets_the_state(
    tmp_path: Path, failure: str, after_s: float
) -> None:
    played = Played(tmp_path)
    world = played.world

    def happens() -> None:
        if failure == "killed":
            world.net.kill(played.helper)
        elif failure == "cut off":
            world.net.cut(played.helper)
        elif failure == "stands still":
            played.helper.still_until_s = 1e9

    with world.running():
        played.begin()
        played.makes(3)
        played.joins_late(happens, after_s)
        if failure == "not reached":
            world.machines["late"].cannot_reach = frozenset([PORT + 1])
        played.ends(*([played.helper] if failure in ("cut off", "stands still") else []))
    assert played.said(FELL_BACK) == 1
    assert world.volunteers["late"].given.visits == 1


@pytest.mark.usefixtures("short")
def test_who_is_too_slow_to_hold_all_averages_takes_the_state_from_the_serving_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = Played(tmp_path)
    monkeypatch.setattr("ravnest.collaboration.taking.HELD_BYTES", 1000)
    monkeypatch.setattr("ravnest.collaboration.taking.HELD_GRADIENTS", 0)
    with played.world.running():
        played.begin()
        played.makes(3)
        played.joins_late()
        played.ends()
    assert played.said(FELL_BACK) == 1
    assert played.world.volunteers["late"].given.visits == 1
