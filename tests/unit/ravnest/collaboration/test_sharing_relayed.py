"""Parts of many pieces that are being handed on to a helper when nobody waits for them any more."""

from collections.abc import Callable
from pathlib import Path

import pytest

from experiments.collaboration.virtual_network import Machine
from experiments.collaboration.virtual_world import PORT, VirtualWorld
from ravnest.collaboration import transfers
from ravnest.collaboration.messages import RelayMessage
from ring_allreduce.transport import Message

LINK = 30_000.0


def begun(world: VirtualWorld, helpers: int, volunteers: int, relayed: int) -> list[Machine]:
    """So many machines stand by, which the last volunteers do not reach; returns the backbone machines."""
    machines = [world.start_backbone(LINK, LINK, number=number, machines=1 + helpers) for number in range(1 + helpers)]
    assert world.net.run(lambda: sum("stands by with" in line for line in world.told) == helpers, 100.0)
    for at in range(volunteers):
        world.join(f"v{at}", 16.0, LINK, LINK)
        if at >= volunteers - relayed:
            world.machines[f"v{at}"].cannot_reach = frozenset(PORT + 1 + helper for helper in range(helpers))
    return machines


def at_relay(world: VirtualWorld, machine: Machine, number: int, happens: Callable[[], None]) -> None:
    seen = [0]

    def watch(way: str, message: Message) -> None:
        if way == "in" and isinstance(message, RelayMessage):
            seen[0] += 1
            if seen[0] == number:
                world.net.at(0.0, happens)

    machine.watch = watch


def given_up(world: VirtualWorld) -> list[str]:
    return [line for line in world.told if "adds up no share" in line or "is put out" in line]


def test_a_helper_is_not_lost_with_another_while_a_part_is_handed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfers, "PIECE_BYTES", 1024)
    world = VirtualWorld(tmp_path, steps=6, target=96, width=600)
    with world.running():
        first, other, lost = begun(world, helpers=2, volunteers=6, relayed=1)
        at_relay(world, other, 2, lambda: world.net.kill(lost))
        assert world.net.run(lambda: world.result is not None or not first.alive, 1000.0)
    (line,) = given_up(world)
    assert line.startswith(f"127.0.0.1:{PORT + 2} ")


def test_a_helper_is_not_put_out_for_parts_of_volunteers_that_have_died(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfers, "PIECE_BYTES", 512)
    world, gone = VirtualWorld(tmp_path, steps=6, target=128, width=600), ("v5", "v6", "v7")

    def die() -> None:
        for name in gone:
            world.net.kill(world.machines[name])

    with world.running():
        first, helper = begun(world, helpers=1, volunteers=8, relayed=len(gone))
        at_relay(world, helper, 5, die)
        assert world.net.run(lambda: world.result is not None or not first.alive, 1000.0)
    assert sum("has left" in line for line in world.told) == len(gone)
    assert not given_up(world)
