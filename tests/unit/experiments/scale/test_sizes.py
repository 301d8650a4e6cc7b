from dataclasses import replace

import pytest

from experiments.scale.fleets import home_plan
from experiments.scale.sizes import Found, Size, claims_of
from ravnest.simulation import Simulated, simulate


@pytest.fixture(scope="module")
def simulated() -> Simulated:
    return simulate(home_plan(8, 2, 1), seconds=20.0)


def found(simulated: Simulated, nodes: int, rate: float, averaging: float | None, stalest: int) -> Found:
    """What came of a fleet for which the plan predicted 100 samples/s, 10 s of averaging and one update."""
    result = replace(simulated, samples_per_s=rate, averaging_s=averaging, staleness={0: 5, stalest: 5})
    return Size(nodes, 2, 20.0), result, 100.0, 10.0, 1


@pytest.mark.parametrize(
    ("rate", "averaging", "stalest", "held"),
    [
        (95.1, 12.4, 1, [True, True, True]),
        (94.0, 12.4, 1, [False, True, True]),
        (106.0, 12.4, 1, [False, True, True]),
        (100.0, 12.6, 1, [True, False, True]),
        (100.0, 7.0, 1, [True, False, True]),
        (100.0, 10.0, 2, [True, True, False]),
        (100.0, None, 1, [True, True, True]),
    ],
)
def test_every_size_counts_towards_each_claim(
    simulated: Simulated, rate: float, averaging: float | None, stalest: int, held: list[bool]
) -> None:
    claims = claims_of([found(simulated, 10, 100.0, 10.0, 1), found(simulated, 10_000, rate, averaging, stalest)])
    assert [claim.name for claim in claims] == ["predicted", "averaging", "staleness"]
    assert [claim.held for claim in claims] == held
    assert f"10,000 nodes {rate / 100 - 1:+.1%}" in claims[0].measured
    assert "10 nodes +0.0%" in claims[1].measured


def test_without_a_round_averaging_is_not_judged(simulated: Simulated) -> None:
    assert [claim.held for claim in claims_of([found(simulated, 10, 100.0, None, 1)])] == [True, None, True]
