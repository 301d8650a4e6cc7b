from dataclasses import replace

import pytest

from experiments.experts.hosting import Beside, delay_part


@pytest.mark.parametrize(
    ("rates", "without", "held"),
    [
        ((95.0, 91.0), (100.0, 100.0), True),
        ((95.0, 80.0), (100.0, 100.0), False),
        ((90.0, 97.0), (60.0, 100.0), True),
        ((90.0, 90.0), (60.0, 100.0), None),
    ],
)
def test_what_is_lost_is_judged_unless_an_unsteady_machine_says_one_thing_and_another(
    rates: tuple[float, float], without: tuple[float, float], held: bool | None
) -> None:
    chain = [
        Beside(0.1 * place, rate, 0.0, base) for place, (rate, base) in enumerate(zip(rates, without, strict=True))
    ]
    many = [[one, replace(one, rate=0.98 * one.rate), replace(one, rate=1.1 * one.rate)] for one in chain]
    part = delay_part(many, chain, quick=False)
    (claim,) = part.claims
    (table,) = part.tables
    assert [row[1] for row in table.rows] == list(rates)  # the middle one of each three
    assert claim.held is held
    assert ("too busy" in claim.measured) == (held is None)
    assert delay_part(many, chain, quick=True).claims[0].held is None


def test_nothing_answered_without_delay_is_no_share() -> None:
    assert Beside(0.1, 5.0, 0.0, 0.0).share == 0.0
