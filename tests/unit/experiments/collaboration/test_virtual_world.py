from pathlib import Path

import pytest

from experiments.collaboration.virtual_world import VirtualWorld


@pytest.mark.parametrize(("rank", "delayed"), [(None, False), (2, False), (2, True)])
def test_the_real_programs_train_together_and_end_with_the_same_bytes(
    tmp_path: Path, rank: int | None, delayed: bool
) -> None:
    world = VirtualWorld(tmp_path, steps=3, target=64, rank=rank, delayed=delayed)
    with world.running():
        backbone = world.start_backbone()
        for name in ("a", "b"):
            world.join(name, 100.0)
        early = world.join("early", 100.0, leaves_after=1)
        everyone = [backbone, *world.machines.values()]  # the backbone stays longest: who has left might come back
        assert world.net.run(lambda: not any(one.alive for one in everyone), 300.0)
    assert backbone.error is early.error is None
    assert world.result is not None
    assert world.steps == len(world.curve()) == 3
    assert {world.volunteers[name].given.weights for name in "ab"} == {world.result.weights_hash}
    assert set(world.people()) == {"a", "b", "early"}
