"""What the times of reading bear out."""

import pytest

from experiments.large.reading import KINDS, SAMPLE_MS, WORKERS, Row, part_of


def rows(slow_s: float) -> list[Row]:
    return [Row(kind, ms, WORKERS, step_s) for kind in KINDS for ms, step_s in ((0.0, 0.02), (SAMPLE_MS, slow_s))]


@pytest.mark.parametrize(("slow_s", "held"), [(0.0205, True), (0.022, False)])
def test_slow_data_are_held_to_the_time_of_quick_ones(slow_s: float, held: bool) -> None:
    assert [claim.held for claim in part_of(rows(slow_s)).claims] == [held, held]
    assert [claim.held for claim in part_of(rows(slow_s), quick=True).claims] == [None, None]
