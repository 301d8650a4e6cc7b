"""What a rendezvous refuses before it listens. tests/integration/test_rendezvous.py has what it does on the network."""

import pytest

from ring_allreduce.errors import InvalidInput
from ring_allreduce.group import rendezvous
from ring_allreduce.group.rendezvous import Rendezvous


@pytest.fixture(autouse=True)
def no_listener(monkeypatch):
    def listen(host, port, keys):
        pytest.fail("it listens, although it was asked for what cannot be")

    monkeypatch.setattr(rendezvous, "_listen", listen)


@pytest.mark.parametrize("port", [-1, 65536, 1.5, "29500", True, None])
def test_a_port_that_is_none_is_refused(port):
    with pytest.raises(InvalidInput, match="a port is a whole number"):
        Rendezvous(2, port=port)


@pytest.mark.parametrize("host", ["", None, 7])
def test_a_host_that_is_none_is_refused(host):
    with pytest.raises(InvalidInput, match="a host is a name or an address"):
        Rendezvous(2, host=host)


@pytest.mark.parametrize("size", [0, -1, 1.5, True, 10**6])
def test_a_size_that_no_group_can_have_is_refused(size):
    with pytest.raises(InvalidInput):
        Rendezvous(size)
