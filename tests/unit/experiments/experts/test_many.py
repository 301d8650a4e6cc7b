import pytest

from experiments.experts.many import Many, many_part


@pytest.mark.parametrize(
    ("last", "measured", "held"),
    [
        (Many(4096, 4, 20.0, kept=4096), "4,096", True),
        (Many(4096, 4, 20.0, kept=4095), "4,095", False),
        (Many(4096, 4, why="12 experts can be called"), "12 experts can be called", False),
    ],
)
def test_the_largest_grid_is_judged_by_the_experts_that_stay_where_they_were(
    last: Many, measured: str, held: bool
) -> None:
    part = many_part([Many(1024, 4, 15.0, kept=1024, requests=100, failed=1), last])
    (claim,) = part.claims
    assert (claim.measured, claim.held) == (measured, held)
    (table,) = part.tables
    assert [row[0] for row in table.rows] == ["1,024", "4,096"]
    assert all(len(row) == len(table.columns) for row in table.rows)
    assert many_part([last], quick=True).claims[0].held is None
