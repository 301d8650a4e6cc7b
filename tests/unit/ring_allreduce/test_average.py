"""What is refused before a group is even looked for."""

import math

import numpy
import pytest
import torch

from ring_allreduce.average import Group, _weight
from ring_allreduce.errors import InvalidInput

TIMES = [math.nan, math.inf, 0.0, -1.0, "5", None]


@pytest.mark.parametrize("timeout_s", TIMES)
def test_a_time_out_of_joining_is_finite_and_more_than_0(timeout_s):
    with pytest.raises(InvalidInput, match="time-out must be finite"):
        Group.join("nowhere:1", name="a", size=1, timeout_s=timeout_s)


@pytest.mark.parametrize("size", [0, -1, 1.5, "2"])
def test_a_group_has_a_whole_number_of_members(size):
    with pytest.raises(InvalidInput, match="at least one member"):
        Group.join("nowhere:1", name="a", size=size)


@pytest.mark.parametrize("number", [True, 1, numpy.float64(1), numpy.int64(1), torch.tensor(1.0)])
def test_any_kind_of_number_is_a_weight(number):
    weight = _weight(number)
    assert (type(weight), weight) == (float, 1.0)


@pytest.mark.parametrize("wrong", [-1, math.nan, math.inf, 10**400, "1", None, torch.ones(2)])
def test_what_is_no_weight_is_refused(wrong):
    with pytest.raises(InvalidInput, match="a weight is a finite number"):
        _weight(wrong)
