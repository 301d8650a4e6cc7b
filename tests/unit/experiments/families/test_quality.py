from experiments.families import quality


def part(**changes: float) -> dict[str, bool | None]:
    """The verdicts where the ways end at these losses; the loss before is 2, a plain loop ends at 1."""
    losses = {
        "before": 2.0,
        **dict.fromkeys(quality.WAYS, 1.0),
        quality.SMALL: 1.2,
        quality.SYNC: 1.19,
        **changes,
    }
    return {claim.name: claim.held for claim in quality.part_of({"net": losses}, 1, 40).claims}


def test_each_claim_holds_where_its_cause_is_the_cause() -> None:
    assert part() == {"adaptive": True, "sgd": True, "rule": True}


def test_each_claim_falls_with_its_own_figures() -> None:
    assert part(**{quality.SYNC: 1.01})["adaptive"] is False
    assert part(**{quality.SGD_SYNC: 1.2})["sgd"] is False
    assert part(**{quality.RULED: 1.2})["rule"] is False
