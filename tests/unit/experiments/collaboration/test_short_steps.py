from experiments.collaboration.short_steps import measure


def test_short_steps_meet_their_batch() -> None:
    part = measure(quick=True)
    assert part.claims[0].held
    assert len(part.tables[0].rows) == 4
