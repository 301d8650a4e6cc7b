"""How the planner's constants are fitted, and what is said of those that it has."""

import math

import pytest

from cluster_planner.predict.objective import ROUND_COST, STALENESS_COST
from experiments.pipeline.tasks import Digits
from experiments.plan_quality.learning_costs import Measured, Studied, best_rate, fitted, part_of, ways

DIGITS = Studied(Digits(), 10, 5, 1e-3, range(3))


def test_a_constant_is_found_again() -> None:
    assert fitted([(x, 1 + 0.3 * x) for x in (0.5, 1.0, 4.0)]) == pytest.approx(0.3)
    assert fitted([(1.0, 1.1), (2.0, 1.4)]) == pytest.approx(0.1712, abs=1e-4)
    assert fitted([(1.0, 0.9)]) < 0


def test_the_search_for_a_rate_goes_on_while_it_gains_and_asks_for_no_more_than_that() -> None:
    asked: list[tuple[float, float]] = []

    def cost(rate: float, most: float) -> float:
        asked.append((rate, most))
        found = 10 + abs(math.log2(rate / 4))
        return found if found <= most else math.inf

    assert best_rate(cost, 1.0, 100.0) == 4.0
    assert asked == [(1.0, 100.0), (2.0, 12.0), (4.0, 11.0), (8.0, 10.0), (2.0, 10.0)]
    assert best_rate(cost, 16.0, 100.0) == 4.0


def test_ways_have_the_terms_of_the_objective() -> None:
    terms = {way.words: way.x for way in ways(DIGITS)}
    assert terms[("9 stages", "τ = 4")] == 4
    assert terms[("4 clusters", "h = 2")] == pytest.approx(3 * math.log2(3))


def test_a_planner_with_other_constants_is_told_so() -> None:
    def measured(factor: float) -> list[Measured]:
        planned = {"STALENESS_COST": STALENESS_COST, "ROUND_COST": ROUND_COST}
        noise = (0.99, 1.0, 1.01)
        return [
            Measured(
                way, 1e-3, *[[1 + more * planned[way.constant] * way.x * one for one in noise] for more in (factor, 3)]
            )
            for way in ways(DIGITS)
        ]

    def held(factor: float) -> dict[str, bool | None]:
        return {claim.name: claim.held for claim in part_of({"digits": measured(factor)}, []).claims}

    assert all(held(1.0).values())
    assert not held(2.0)["STALENESS_COST"]
    assert not held(2.0)["ROUND_COST"]
    assert held(2.0)["form of ROUND_COST"]
