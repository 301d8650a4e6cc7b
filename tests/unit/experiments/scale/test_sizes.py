from dataclasses import replace

import pytest

from experiments.scale.fleets import home_plan
from experiments.scale.sizes import Expected, Found, Size, claims_of, expected_of, found_of, simulated
from ravnest.simulator import SimulatedRun, simulate

EXPECTED = Expected(
    unaveraged_per_s=120.0, samples_per_s=100.0, interval_s=60.0, under_way_s=70.0, alone_s=10.0, max_staleness=1
)
"""Of rounds of 6,000 samples."""
ROUNDS_S = ((50.0, 110.0), (105.0, 171.0), (160.0, 230.0), (220.0, 291.0), (282.0, 303.0), (300.0, 310.0))


@pytest.fixture(scope="module")
def result() -> SimulatedRun:
    return simulate(home_plan(8, 2, 1), seconds=20.0)


def found(result: SimulatedRun, nodes: int, rate: float, under_way: float | None, alone: float, stalest: int) -> Found:
    """What came of a fleet of which EXPECTED was predicted; where no round was under way, none was seen."""
    came = replace(result, staleness={0: 5, stalest: 5})
    interval_s = None if under_way is None else 6000 / rate
    return Found(Size(nodes, 2, 5.0), came, EXPECTED, rate, interval_s, under_way, alone)


@pytest.mark.parametrize(
    ("rate", "under_way", "alone", "stalest", "held"),
    [
        (95.1, 80.0, 12.4, 1, [True, True, True, True]),
        (94.0, 80.0, 12.4, 1, [False, True, True, True]),
        (106.0, 80.0, 12.4, 1, [False, True, True, True]),
        (100.0, 88.0, 12.4, 1, [True, False, True, True]),
        (100.0, 52.0, 12.4, 1, [True, False, True, True]),
        (100.0, 70.0, 12.6, 1, [True, True, False, True]),
        (100.0, 70.0, 7.0, 1, [True, True, False, True]),
        (100.0, 70.0, 10.0, 2, [True, True, True, False]),
        (119.0, None, 10.0, 1, [True, True, True, True]),
        (100.0, None, 10.0, 1, [False, True, True, True]),
    ],
)
def test_every_size_counts_towards_each_claim(
    result: SimulatedRun, rate: float, under_way: float | None, alone: float, stalest: int, held: list[bool]
) -> None:
    claims = claims_of(
        [found(result, 10, 100.0, 70.0, 10.0, 1), found(result, 10_000, rate, under_way, alone, stalest)]
    )
    assert [claim.name for claim in claims] == ["predicted", "under way", "averaging", "staleness"]
    assert [claim.held for claim in claims] == held
    predicted = 120.0 if under_way is None else 100.0
    assert f"10,000 nodes {rate / predicted - 1:+.1%}" in claims[0].measured
    assert "10 nodes +0.0%" in claims[1].measured


def test_without_a_round_under_way_none_is_judged(result: SimulatedRun) -> None:
    claims = claims_of([found(result, 10, 120.0, None, 10.0, 1)])
    assert [claim.held for claim in claims] == [True, None, True, True]


def test_rounds_count_from_the_second_to_the_last_before_the_drain(result: SimulatedRun) -> None:
    came = replace(result, rounds_s=ROUNDS_S, drain_s=292.0)
    read = found_of(Size(10, 2, 5.0), came, EXPECTED, 6000, 10.0)
    assert read.interval_s == (291.0 - 171.0) / 2
    assert read.rate_per_s == 100.0
    assert read.under_way_s == pytest.approx((66.0 + 70.0 + 71.0) / 3)
    assert read.predicted_per_s == EXPECTED.samples_per_s


def test_before_the_first_round_samples_are_compared_with_those_predicted_without_averaging(
    result: SimulatedRun,
) -> None:
    came = replace(result, rounds_s=((20.0, 30.0),), drain_s=20.0)
    read = found_of(Size(10, 2, 0.4), came, EXPECTED, 6000, 10.0)
    assert (read.interval_s, read.under_way_s) == (None, None)
    assert (read.rate_per_s, read.predicted_per_s) == (came.samples_per_s, EXPECTED.unaveraged_per_s)


def test_a_round_is_expected_to_be_under_way_for_as_long_as_it_is_waited_for_and_the_lag_before() -> None:
    plan = home_plan(10, 5, 1)
    expected = expected_of(plan)
    trained_s = plan.workload.average_every / expected.unaveraged_per_s
    assert expected.samples_per_s == plan.predicted.samples_per_s < expected.unaveraged_per_s
    assert expected.under_way_s == pytest.approx(2 * expected.interval_s - trained_s)
    nobody_waits = replace(plan, predicted=replace(plan.predicted, samples_per_s=expected.unaveraged_per_s))
    assert expected_of(nobody_waits).under_way_s is None


def test_a_small_fleet_comes_out_as_expected() -> None:
    several, before_the_first = simulated(Size(10, 5, 5.5)), simulated(Size(10, 5, 0.5))
    assert several.interval_s is not None
    assert [claim.held for claim in claims_of([several])] == [True, True, True, True]
    assert before_the_first.interval_s is None
    assert before_the_first.alone_s == pytest.approx(several.alone_s, rel=0.1)
