import pytest
import torch

from experiments.pipeline.tasks import Digits
from experiments.wire.averaging import averaged, trained_in_rounds
from experiments.wire.tried_forms import EXACT
from experiments.wire.tried_rounds import WAYS, Way, trained


def test_a_number_travels_in_its_turn():
    way, vector = Way(EXACT, turns=3), torch.arange(1.0, 8.0)
    rounds = [way.passed(vector, number) for number in range(3)]
    assert torch.equal(sum(rounds), vector)
    assert rounds[1].tolist() == [0, 2, 0, 0, 5, 0, 0]
    assert way.ratio == 3


def test_longer_rounds_send_all_at_their_end():
    way, vector = Way(EXACT, turns=3, at_once=True), torch.arange(1.0, 8.0)
    assert [way.passed(vector, number).sum().item() for number in range(4)] == [28, 0, 0, 28]
    assert way.ratio == 3


def test_ways_say_their_bytes():
    assert WAYS["sparse, kept"].ratio == pytest.approx(51.2)
    assert WAYS["int4 in seven turns, kept"].ratio == pytest.approx(52.7, rel=0.01)


@pytest.mark.parametrize("kept", [False, True])
def test_exact_rounds_are_those_of_the_part_averaging(kept):
    """All clusters as one model, whose gradients are clipped one by one, learn what each alone does."""
    task = Digits(batch=16)

    def mean(_, parts):
        some = list(parts.values())
        return averaged(some, [torch.zeros_like(some[0]) for _ in range(len(some) + 1)], "float32")

    alone = task.held_out_loss(trained_in_rounds(task, 1, range(8), 2, mean), whole=True)
    ((_, (together,)),) = trained(task, [1], Way(EXACT, kept=kept, momentum=False), [2])
    assert together == pytest.approx(alone, rel=1e-3)
