"""When a collaboration ends that has a time instead of a number of samples."""

from pathlib import Path

import pytest

from tests.unit.ravnest.collaboration.test_backbone import World


def ends_after(world: World, seconds: float) -> bool:
    """Whether serving ends by itself when so long has passed since it began."""
    left = iter((0.0, seconds, 0.0, 0.0))

    def stop() -> bool:
        passed_s = next(left, None)
        world.lines.now_s += passed_s or 0.0
        return passed_s is None

    return world.backbone.serve(stop).weights is not None


def test_minutes_count_from_the_first_micro_batch_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path, monkeypatch)
    trainer = world.kept.trainer
    stop = trainer.job.stop.model_copy(update={"samples": None, "minutes": 5.0})
    monkeypatch.setattr(trainer, "job", trainer.job.model_copy(update={"stop": stop}))
    monkeypatch.setattr(trainer, "total_steps", None)
    assert not ends_after(world, 3600.0)  # nobody has come yet
    world.joins(1)
    world.takes_all(1)
    world.reports(1, 0)  # it computes
    world.turns(4)
    assert not ends_after(world, 290.0)
    assert ends_after(world, 301.0)
