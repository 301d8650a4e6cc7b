"""Who joins while its state takes many steps, played by the real programs under a virtual clock: it catches up where
its link carries averages faster than they are made, and else it is told so and ends (decision 260)."""

from pathlib import Path
from statistics import mean

import pytest

from experiments.collaboration.virtual_world import VirtualWorld
from ravnest.collaboration import keeping_up, taking, transfers
from ravnest.collaboration.sign_in import Refused

PARAMETERS, STATE_BYTES = 11_402, 12 * 11_402
PEERS, RATE, STEP_S = 4, 4.0, 4.0
"""The others fill a batch of 64 samples in so many seconds; their links take no time beside that."""

LATE_RATE = 32.0
BEFORE = 3
"""Steps that are made before it comes."""


@pytest.fixture(autouse=True)
def short_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfers, "PIECE_BYTES", 2048)


def late_joiner(
    folder: Path, state_steps: float, steps: int, *, wire: str, rank: int | None, delayed: bool, machines: int = 1
) -> VirtualWorld:
    """A world in which one volunteer comes late, whose link takes so many steps for the state alone. All come to the
    end."""
    world = VirtualWorld(folder, steps=steps, target=64, width=600, wire=wire, rank=rank, delayed=delayed)
    link = STATE_BYTES / (STEP_S * state_steps)
    with world.running():
        first = world.start_backbone(machines=machines)
        for number in range(1, machines):
            world.start_backbone(number=number, machines=machines)
        assert world.net.run(lambda: sum("stands by with" in line for line in world.told) == machines - 1, 100.0)
        for at in range(PEERS):
            world.join(f"v{at}", RATE)
        assert world.net.run(lambda: world.steps >= BEFORE, 100.0)
        late = world.join("late", LATE_RATE, link, link)
        assert world.net.run(lambda: not first.alive and not late.alive, 3600.0)
        assert first.error is None
    return world


def steps_alone(world: VirtualWorld) -> list[float]:
    """Seconds of the steps from the joining on to which it gave nothing yet."""
    seconds = list[float]()
    for entry in world.curve()[BEFORE:]:
        if entry["peers"] > PEERS:
            break
        seconds.append(entry["seconds"])
    return seconds


@pytest.mark.parametrize(
    ("state_steps", "wire", "rank", "delayed", "machines", "least", "most"),
    [
        (5, "int8", None, False, 1, 8, 14),
        (5, "int8", None, True, 1, 8, 14),
        (5, "int8", None, True, 2, 8, 14),
        (10, "float16", 2, True, 1, 18, 26),
        (10, "float16", 2, False, 2, 18, 26),
        (20, "float16", 1, True, 1, 45, 65),
        (20, "float16", 1, True, 2, 45, 65),
    ],
)
def test_who_joins_catches_up_where_its_link_is_faster_than_the_steps(
    tmp_path: Path, state_steps: int, wire: str, rank: int | None, delayed: bool, machines: int, least: int, most: int
) -> None:
    world = late_joiner(tmp_path, state_steps, most + 8, wire=wire, rank=rank, delayed=delayed, machines=machines)
    volunteer = world.volunteers["late"]
    assert world.machines["late"].error is None
    assert volunteer.given.visits == 1
    assert world.people()["late"]["samples"] > 0
    alone = steps_alone(world)
    assert least <= len(alone) <= most
    assert mean(alone) < 1.05 * world.curve()[BEFORE - 1]["seconds"], "nobody waits for it"


def test_who_is_too_slow_to_hold_averages_catches_up_by_the_serving_machine_s_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(taking, "HELD_BYTES", 10_000)
    monkeypatch.setattr(taking, "HELD_GRADIENTS", 0)
    world = late_joiner(tmp_path, 5, 30, wire="int8", rank=None, delayed=True, machines=2)
    assert sum("and takes it from this machine" in line for line in world.told) == 1
    assert world.volunteers["late"].given.visits == 1
    assert world.people()["late"]["samples"] > 0


@pytest.mark.parametrize("delayed", [False, True])
def test_who_never_can_is_told_so_with_figures_and_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, delayed: bool
) -> None:
    monkeypatch.setattr(keeping_up, "JUDGED", 8)
    world = late_joiner(tmp_path, 9, 70, wire="float16", rank=None, delayed=delayed)
    error = world.machines["late"].error
    assert isinstance(error, Refused)
    assert "it takes averages more slowly than they are made: it took 0.0" in str(error)
    assert "it fell behind 3 times: its link or its machine is too slow for these steps" in str(error)
    assert world.volunteers["late"].given.visits == keeping_up.MOST_TRIES
    seconds = [entry["seconds"] for entry in world.curve()]
    assert mean(seconds[BEFORE:]) < 1.05 * seconds[BEFORE - 1], "nobody waits for it"
