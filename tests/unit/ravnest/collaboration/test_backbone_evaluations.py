"""A held-out set that takes longer than volunteers wait for a backbone, played by the real programs under a virtual
clock."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from experiments.collaboration.virtual_world import VirtualWorld
from ravnest.collaboration import trainer as trainer_module
from ravnest.collaboration.sign_in import SILENT_S
from ravnest.training.sampler import EvaluationBatches

STEPS = 6


def test_a_held_out_set_that_takes_longer_than_a_silence_may_last_costs_no_visit_and_no_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = VirtualWorld(tmp_path, steps=STEPS, target=64, every_state=True, beside=True)

    class Slowly(EvaluationBatches):
        def __iter__(self) -> Iterator[range]:
            world.net.sleep(SILENT_S + 100.0)
            yield from super().__iter__()

    monkeypatch.setattr(trainer_module, "EvaluationBatches", Slowly)
    with world.running():
        backbone = world.start_backbone()
        for name in ("ada", "eva", "lea"):
            world.join(name, 0.5)
        everyone = [backbone, *world.machines.values()]
        assert world.net.run(lambda: not any(one.alive for one in everyone), 1e5)
        assert [one.error for one in everyone] == [None] * len(everyone)
    assert all(volunteer.given.visits == 1 for volunteer in world.volunteers.values())
    seconds = [entry["seconds"] for entry in world.curve()]
    assert len(seconds) == STEPS
    assert max(seconds) < 100.0
    lines = map(json.loads, (world.out / "curve.jsonl").read_text().splitlines())
    assert [line["step"] for line in lines if "held_out" in line] == [1, STEPS]
    assert sum("is not evaluated" in line for line in world.told) == STEPS - 2
