from pathlib import Path

import pytest

from ravnest.pictures import draw_simulation, mean_of, time_unit
from ravnest.simulator import simulate
from tests.unit.ravnest.simulator.test_fleet import home_plan


@pytest.mark.parametrize(
    ("seconds", "unit"), [(0.5, (1.0, "s")), (90.0, (1.0, "s")), (600.0, (60.0, "min")), (9000.0, (3600.0, "h"))]
)
def test_time_is_in_the_unit_that_fits_it(seconds: float, unit: tuple[float, str]) -> None:
    assert time_unit(seconds) == unit


def test_the_mean_is_that_of_the_steady_state_where_there_is_one(tmp_path: Path) -> None:
    result = simulate(home_plan(), samples=1000)
    assert mean_of(result, steady=True) == (result.steady_from_s, result.samples_per_s)
    from_s, mean = mean_of(result, steady=False)
    assert from_s == 0.0
    assert mean == pytest.approx(result.samples / result.drain_s, rel=0.1)
    for steady in (True, False):
        draw_simulation(result, 80.0, tmp_path / "simulated.png", steady=steady)
        assert (tmp_path / "simulated.png").stat().st_size > 10_000
