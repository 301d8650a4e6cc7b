import pytest

from experiments.scale.rings import Row, ends_of_scaling, row_of


def row(members: int, simulated: bool, narrowest_s: float, way_s: float, share: float) -> Row:
    return members, 8.0, 1.0 if simulated else None, narrowest_s, way_s, share, None


def test_a_ring_that_is_not_simulated_is_compared_with_the_same_time_between_rounds() -> None:
    simulated, by_formula = row_of(6, 500_000), row_of(6, 500_000, simulated=False)
    assert simulated[2] is not None
    assert by_formula[2] is None
    assert by_formula[3:5] == simulated[3:5]
    between_s = simulated[2] / simulated[5]
    assert max(by_formula[3:5]) / by_formula[5] == pytest.approx(between_s)


def test_where_scaling_ends_is_said_with_how_it_is_known() -> None:
    rows = [row(10, True, 2.0, 1.0, 0.1), row(100, True, 2.0, 3.0, 0.5), row(1000, False, 2.0, 30.0, 5.0)]
    latent, over = ends_of_scaling(rows)
    assert "made of latencies has 100 members (simulated)" in latent
    assert "has 1,000 members (by the formula, not simulated): clusters wait" in over
    assert ends_of_scaling(rows[:1]) == ["No ring here takes as long as the time between rounds."]
