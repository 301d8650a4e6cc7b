import tempfile
from pathlib import Path

import pytest

from experiments.collaboration.drawn_worlds import measure
from experiments.collaboration.virtual_world import VirtualWorld


def test_drawn_worlds_make_all_their_steps_with_whole_batches() -> None:
    part = measure(quick=True)
    assert [claim.held for claim in part.claims[:2]] == [True, True]
    worlds, steps, over = (sum(int(str(row[at])) for row in part.tables[0].rows) for at in (2, 3, 4))
    assert (worlds, steps) == (8, 128)
    assert over <= 1  # in the first step of world 3, where the backbone's link carries states for ten


@pytest.mark.parametrize("delayed", [False, True])
def test_six_equal_volunteers_with_large_micro_batches_meet_their_first_batch(delayed: bool) -> None:
    assert _batches(6, 12 * 8, 125e6, 125e6, delayed=delayed) == [1.0] * 6


@pytest.mark.parametrize("up", [30e3, 60e3])
def test_batches_are_met_where_averages_take_longer_than_computing(up: float) -> None:
    assert max(_batches(4, 32 * 8, up, 600e3, width=1024, delayed=True)) <= 1.1


def _batches(peers: int, target: int, up: float, down: float, *, width: int = 600, delayed: bool) -> list[float]:
    """The batches, of the target, of six steps of equal volunteers with a backbone of that link."""
    with tempfile.TemporaryDirectory() as folder:
        world = VirtualWorld(Path(folder), steps=6, target=target, width=width, delayed=delayed)
        with world.running():
            backbone = world.start_backbone(up, down)
            for at in range(peers):
                world.join(f"v{at}", 16.0)
            world.net.run(lambda: world.result is not None or not backbone.alive, 3600.0)
        return [entry["samples"] / target for entry in world.curve()]
