from itertools import pairwise

import pytest

from cluster_planner import Unit
from ravnest.collaboration.lent_cuts import LentPower, spans_for
from ravnest.errors import InvalidInput

GB = 10**9


def units(*flops: float, parameter_bytes: int = 1000) -> list[Unit]:
    return [
        Unit(
            name=str(at),
            flops=one,
            parameter_bytes=parameter_bytes,
            saved_bytes=100,
            boundary_bytes=10,
            boundary_gradient_bytes=10,
        )
        for at, one in enumerate(flops)
    ]


def machine(flops_per_s: float = 1e9, free_bytes: int = GB) -> LentPower:
    return LentPower("one", flops_per_s, free_bytes)


def test_equal_machines_share_the_work_and_fast_ones_take_more() -> None:
    assert spans_for(units(*[1e6] * 8), [machine(), machine()], 4) == [(0, 4), (4, 8)]
    assert spans_for(units(*[1e6] * 8), [machine(3e9), machine(1e9)], 4) == [(0, 6), (6, 8)]
    assert spans_for(units(5e6, 1e6, 1e6, 1e6, 1e6), [machine()] * 3, 1)[0] == (0, 1)


def test_every_machine_holds_a_unit_and_all_units_are_held() -> None:
    for count in range(1, 6):
        spans = spans_for(units(1e9, *[1.0] * 4), [machine()] * count, 1)
        assert spans[0][0] == 0
        assert spans[-1][1] == 5
        assert all(one[1] == other[0] for one, other in pairwise(spans))
        assert all(end > start for start, end in spans)


def test_memory_limits_what_a_fast_machine_takes() -> None:
    heavy = units(*[1e6] * 4, parameter_bytes=GB // 10)
    assert spans_for(heavy, [machine(1e12, GB // 2 + 10**6), machine(1e6, 4 * GB)], 1) == [(0, 1), (1, 4)]


def test_what_fits_no_division_is_refused_in_words() -> None:
    with pytest.raises(InvalidInput, match="2 units"):
        spans_for(units(1.0, 1.0), [machine()] * 3, 1)
    with pytest.raises(InvalidInput, match="GB to train"):
        spans_for(units(1.0, 1.0, parameter_bytes=GB), [machine(), machine()], 1)


def test_one_machine_holds_all_units_however_the_times_are_rounded() -> None:
    for speed in range(1, 200):
        assert spans_for(units(208.0, 16.0, 70.0), [machine(speed / 7 * 1e9)], 8) == [(0, 3)]
