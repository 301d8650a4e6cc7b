import pytest

from experiments.collaboration.fixed import MOST_DIFFERENCE, compared


@pytest.mark.parametrize("delayed", [False, True])
def test_a_fixed_membership_makes_the_steps_of_a_plain_loop(delayed: bool) -> None:
    differences, batches, seconds = compared(3, delayed=delayed)
    assert len(differences) == len(batches) == 3
    assert max(differences) <= MOST_DIFFERENCE
    assert min(batches) >= 1.0
    assert max(batches) <= 1.1
    assert max(seconds) < 60.0
