"""What is refused before a group is even looked for."""

import math

import pytest

from ring_allreduce.average import Group
from ring_allreduce.errors import InvalidInput

TIMES = [math.nan, math.inf, 0.0, -1.0]


@pytest.mark.parametrize("timeout_s", TIMES)
def test_a_time_out_of_joining_is_finite_and_more_than_0(timeout_s):
    with pytest.raises(InvalidInput, match="time-out must be finite"):
        Group.join("nowhere:1", name="a", size=1, timeout_s=timeout_s)
