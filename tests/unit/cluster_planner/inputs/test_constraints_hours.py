""" """

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster_planner.inputs.constraints import ALL_DAY, common_hours, hours_from, hours_to, part_of_day


def test_hours_over_midnight_and_several_ranges() -> None:
    assert hours_from("22-2") == sum(1 << hour for hour in (22, 23, 0, 1))
    assert hours_from("0-24") == ALL_DAY
    assert hours_from("18-24, 6-7") == hours_from("6-7,18-24")
    assert part_of_day(hours_from("18-24")) == 0.25
    assert common_hours([]) == ALL_DAY
    assert hours_to(common_hours([hours_from("18-24"), hours_from("20-6")])) == "20-24"


@pytest.mark.parametrize("text", ["", "18", "18-18", "24-2", "0-25", "6:30-8", "evening", "1-2,", "-1-3"])
def test_what_names_no_hours_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be whole hours of the day in UTC"):
        hours_from(text)


@given(st.integers(1, ALL_DAY))
def test_any_hours_come_back(hours: int) -> None:
    assert hours_from(hours_to(hours)) == hours
