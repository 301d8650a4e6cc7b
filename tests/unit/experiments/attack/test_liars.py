"""The lies of the experiment, and that a training with them is the same each time."""

import torch

from experiments.attack.liars import LIES, trained
from experiments.pipeline.tasks import Digits


def test_every_lie_changes_what_is_sent_and_each_liar_lies_in_a_way_of_its_own() -> None:
    progress = torch.linspace(-1.0, 1.0, 50)
    for name, lie in LIES.items():
        assert not torch.equal(lie(progress, 1, 1), progress), name
        assert torch.equal(lie(progress, 2, 1), lie(progress, 2, 1)), name
    assert not torch.equal(LIES["drifting"](progress, 1, 1), LIES["drifting"](progress, 1, 2))
    assert LIES["drifting"](progress, 9, 1).norm() > LIES["drifting"](progress, 1, 1).norm()


def test_a_training_is_the_same_each_time_and_a_liar_that_is_noticed_leaves_it() -> None:
    torch.set_num_threads(1)
    task = Digits(batch=16)
    first, again = (trained(task, "trimmed_mean", LIES["scaled"], 1, 0, 4) for _ in range(2))
    assert first == again
    assert first.shut_out == {0: 3}
