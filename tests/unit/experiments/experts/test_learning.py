from experiments.experts.learning import learn


def test_failures_are_those_that_were_asked_for_and_a_seed_gives_the_same_again() -> None:
    calm, late = learn(2, 0.0, 0.0, 1, 0, 3), learn(2, 1.0, 0.2, 4, 0, 9)
    assert (calm.failed, calm.lost_batches) == (0.0, 0)
    assert late.failed > 0.0
    assert learn(2, 1.0, 0.2, 4, 0, 9) == late
