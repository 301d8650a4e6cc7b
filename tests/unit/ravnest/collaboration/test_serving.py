"""Backbone machines that take over from each other are played by the real programs, under a virtual clock."""

from pathlib import Path
from typing import NoReturn

import pytest

from experiments.collaboration.virtual_network import Machine
from experiments.collaboration.virtual_world import VirtualWorld
from ravnest.collaboration import backbone, stand_by
from ravnest.collaboration.backbone_state import BackboneResult, BackboneState
from ravnest.collaboration.backbone_store import BackboneStore
from ravnest.collaboration.serving import serve_or_stand_by
from ravnest.job.config import load_job
from ring_allreduce import TransportError
from tests.unit.ravnest.collaboration.jobs import job_in
from tests.unit.ravnest.collaboration.lines_twin import LinesTwin

RATE = 6.0
"""Samples per second of each of three volunteers: a step of 64 takes some four seconds."""


def trained(world: VirtualWorld, count: int) -> None:
    for at in range(count):
        world.join(f"v{at}", RATE)


def ends(world: VirtualWorld, machines: list[Machine], most_s: float = 3000.0) -> None:
    """Let everyone come to the end, and look that all hold the same bytes."""
    everyone = [*world.machines.values(), *machines]
    assert world.net.run(lambda: not any(one.alive for one in everyone), most_s)
    assert [one.error for one in everyone if not one.killed] == [None] * sum(not one.killed for one in everyone)
    hashes = {result.weights_hash for result in world.results.values()}
    hashes |= {volunteer.given.weights for volunteer in world.volunteers.values()}
    assert len(hashes) == 1
    assert all(result.weights is not None for result in world.results.values())


@pytest.mark.parametrize(("told", "most_s"), [(True, 60.0), (False, 120.0)])
def test_volunteers_come_to_the_machine_that_took_over_whether_or_not_their_lines_have_ended(
    tmp_path: Path, told: bool, most_s: float
) -> None:
    """A machine that loses its power says nothing to anybody."""
    world = VirtualWorld(tmp_path, steps=12, target=64)
    with world.running():
        first = world.start_backbone(machines=2)
        second = world.start_backbone(number=1, machines=2)
        trained(world, 3)
        assert world.net.run(lambda: world.steps >= 4, 300.0)
        world.net.kill(first, told=told)
        died_s, steps = world.net.now_s, world.steps
        assert world.net.run(lambda: world.steps > steps, died_s + most_s)
        ends(world, [second])


@pytest.mark.parametrize(("rank", "delayed"), [(None, False), (2, True)])
def test_a_backbone_machine_that_dies_is_replaced_and_stands_by_when_it_comes_back(
    tmp_path: Path, rank: int | None, delayed: bool
) -> None:
    world = VirtualWorld(tmp_path, steps=30, target=64, rank=rank, delayed=delayed)
    with world.running():
        first = world.start_backbone(machines=2)
        second = world.start_backbone(number=1, machines=2)
        trained(world, 3)
        assert world.net.run(lambda: world.steps >= 4, 300.0)
        world.net.kill(first)
        died_s, steps = world.net.now_s, world.steps
        assert world.net.run(lambda: world.steps > steps, died_s + 60.0)
        assert world.serving == [0, 1]
        again = world.start_backbone(machines=2, resume=True)
        ends(world, [second, again])
    assert world.serving == [0, 1]  # it has followed, and never served again
    assert set(world.results) == {0, 1}
    assert [result.steps for result in world.results.values()] == [30, 30]
    assert (tmp_path / "out1" / "term.txt").read_text() == "1\n"
    assert set(world.people()) == {"v0", "v1", "v2"}


def test_a_machine_that_was_cut_off_and_went_on_serving_steps_down(tmp_path: Path) -> None:
    world = VirtualWorld(tmp_path, steps=60, target=64)
    with world.running():
        first = world.start_backbone(machines=2)
        second = world.start_backbone(number=1, machines=2)
        trained(world, 3)
        assert world.net.run(lambda: world.steps >= 4, 300.0)
        first.still_until_s = world.net.now_s + 90.0
        ends(world, [first, second])
    assert world.serving == [0, 1]
    assert world.results[0].steps == world.results[1].steps == 60


def test_a_machine_that_was_given_keys_and_no_state_never_serves(tmp_path: Path) -> None:
    world = VirtualWorld(tmp_path, steps=30, target=64)
    with world.running():
        first = world.start_backbone(machines=2)
        world.net.kill(first)
        second = world.start_backbone(number=1, machines=2)
        assert not world.net.run(lambda: len(world.serving) > 1 or not second.alive, 1000.0)
    assert second.error is None


def test_a_machine_that_was_stopped_before_it_had_a_state_has_none_when_it_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stand_by, "Lines", lambda *_, **__: LinesTwin())
    path = job_in(tmp_path / "job")
    BackboneStore(tmp_path / "first", resume=False)
    (tmp_path / "second").mkdir()
    (tmp_path / "second" / "keys.json").write_bytes((tmp_path / "first" / "keys.json").read_bytes())

    def second() -> BackboneState:
        return BackboneState(
            load_job(path), path, tmp_path / "second", resume=True, tell=lambda _: None, now=lambda: 0.0
        )

    result = serve_or_stand_by(
        second(),
        listen="127.0.0.1:0",
        addresses=("127.0.0.1:7801",),
        others=("127.0.0.1:7800",),
        serves_first=False,
        stop=lambda: True,
    )
    assert result.weights is None
    assert not second().holds_state


@pytest.mark.parametrize("resume", [False, True])
def test_a_start_whose_port_is_taken_leaves_the_folder_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resume: bool
) -> None:
    path, out = job_in(tmp_path / "job"), tmp_path / "out"
    out.mkdir()
    (out / "signatures.txt").write_text("")  # is put there beforehand

    def started() -> BackboneResult:
        state = BackboneState(load_job(path), path, out, resume=resume, tell=lambda _: None, now=lambda: 0.0)
        return serve_or_stand_by(
            state, listen="127.0.0.1:7800", addresses=(), serves_first=not resume, stop=lambda: True
        )

    def taken(*_: object, **__: object) -> NoReturn:
        raise TransportError("cannot listen on 127.0.0.1:7800: Address already in use")

    if resume:
        BackboneStore(out, resume=False)
    before = {one.name: one.read_bytes() for one in out.iterdir()}
    monkeypatch.setattr(backbone, "Lines", taken)
    with pytest.raises(TransportError, match="already in use"):
        started()
    assert {one.name: one.read_bytes() for one in out.iterdir()} == before
    monkeypatch.setattr(backbone, "Lines", lambda *_, **__: LinesTwin())
    assert started().weights is None
    assert (out / "keys.json").exists()


def test_of_three_machines_one_takes_over_at_a_time(tmp_path: Path) -> None:
    world = VirtualWorld(tmp_path, steps=30, target=64)
    with world.running():
        machines = [world.start_backbone(number=number, machines=3) for number in range(3)]
        trained(world, 3)
        assert world.net.run(lambda: world.steps >= 4, 300.0)
        world.net.kill(machines[0])
        assert world.net.run(lambda: len(world.serving) == 2 and world.steps >= 8, 600.0)
        world.net.kill(machines[1])
        ends(world, machines[2:])
    assert world.serving == [0, 1, 2]
