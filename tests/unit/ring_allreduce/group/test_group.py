"""What is refused before a group is even looked for."""

import math

import numpy
import pytest
import torch

from ring_allreduce.errors import InvalidInput
from ring_allreduce.group.group import Group, host_and_port, weight_of
from ring_allreduce.group.rendezvous import Rendezvous

TIMES = [math.nan, math.inf, 0.0, -1.0, "5", None]


@pytest.mark.parametrize("timeout_s", TIMES)
def test_a_time_out_of_joining_is_finite_and_more_than_0(timeout_s):
    with pytest.raises(InvalidInput, match="time-out must be finite"):
        Group.join("nowhere:1", name="a", size=1, timeout_s=timeout_s)


@pytest.mark.parametrize("size", [0, -1, 1.5, "2", True])
def test_a_group_has_a_whole_number_of_members(size):
    with pytest.raises(InvalidInput, match="a group's size is a whole number"):
        Group.join("nowhere:1", name="a", size=size)


@pytest.mark.parametrize("port", [-1, 99999, "1", 1.0, True])
def test_a_rendezvous_listens_on_a_port_that_there_is(port):
    with pytest.raises(InvalidInput, match="a port is a whole number"):
        Rendezvous(size=1, port=port)


@pytest.mark.parametrize(
    "rendezvous",
    [
        *(29500, ("127.0.0.1", 29500), None, "nowhere", ":29500", "nowhere:", "nowhere:0", "nowhere:65536"),
        *("nowhere:²", "tcp://nowhere:1", "nowhere:1 ", "[]:1", "[nowhere:1"),
    ],
)
def test_what_is_no_rendezvous_is_refused(rendezvous):
    with pytest.raises(InvalidInput, match='a rendezvous is "host:port", got'):
        Group.join(rendezvous, name="a", size=1)


def test_an_ipv6_address_may_stand_in_brackets():
    assert host_and_port("[2001:db8::7]:29500") == host_and_port("2001:db8::7:29500") == ("2001:db8::7", 29500)
    assert host_and_port("attic.local:1") == ("attic.local", 1)


@pytest.mark.parametrize("name", ["", "x" * 101, 7, None])
def test_what_is_no_name_is_refused(name):
    with pytest.raises(InvalidInput, match="a name has 1 to 100 characters"):
        Group.join("nowhere:1", name=name, size=1)


@pytest.mark.parametrize("host", ["", None, 7])
def test_what_is_no_host_is_refused(host):
    with pytest.raises(InvalidInput, match="host"):
        Group.join("nowhere:1", name="a", size=1, host=host)
    with pytest.raises(InvalidInput, match="host"):
        Rendezvous(size=1, host=host)


@pytest.mark.parametrize("number", [True, 1, numpy.float64(1), numpy.int64(1), torch.tensor(1.0)])
def test_any_kind_of_number_is_a_weight(number):
    weight = weight_of(number)
    assert (type(weight), weight) == (float, 1.0)


@pytest.mark.parametrize("wrong", [-1, math.nan, math.inf, 10**400, "1", None, torch.ones(2)])
def test_what_is_no_weight_is_refused(wrong):
    with pytest.raises(InvalidInput, match="a weight is 0, or a number from 1e-12"):
        weight_of(wrong)
