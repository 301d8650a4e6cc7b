from experiments.collaboration.short_steps import measure


def test_short_steps_meet_their_batch() -> None:
    part = measure(quick=True)
    assert part.claims[0].held
    assert len(part.tables[0].rows) == 4
    at_once, delayed = part.tables[1].rows
    assert float(str(delayed[4])) <= 1.1 < float(str(at_once[4])), "so docs advise delayed steps there"
    assert float(str(delayed[2])) < float(str(at_once[2]))
