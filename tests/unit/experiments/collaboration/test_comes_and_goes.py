from pathlib import Path

from experiments.collaboration.comes_and_goes import Collaboration, alone
from tests.unit.ravnest.collaboration.jobs import job_in


def test_a_collaboration_is_of_its_seed_and_all_its_batches_are_full(tmp_path: Path) -> None:
    job = job_in(tmp_path)
    hashes = set()
    for _ in range(2):
        world = Collaboration(3, 5, job)
        world.run()
        assert world.owner.step == 5
        assert all(64 <= batch <= 1.25 * 64 for batch in world.batches)  # a micro-batch is an eighth of this batch
        hashes.add(world.backbone.weights_hash())
    assert len(hashes) == 1


def test_one_process_learns_from_the_same_number_of_steps(tmp_path: Path) -> None:
    job = job_in(tmp_path)
    assert alone(0, 12, job).evaluate()["loss"] < alone(0, 1, job).evaluate()["loss"]
