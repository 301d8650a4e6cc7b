"""An address that may come from the network is refused unless it can be one."""

import pytest

from ring_allreduce.errors import InvalidInput
from ring_allreduce.transport.endpoint import PeerAddress


@pytest.mark.parametrize("host", ["desk", "192.0.2.10", "fe80::1%eth0", "a.example.org"])
def test_names_and_addresses_are_usable(host: str) -> None:
    PeerAddress(host, 1, 65535).require_usable("a")


@pytest.mark.parametrize(
    ("address", "said"),
    [
        (PeerAddress("", 1, 2), "'a' has no valid host"),
        (PeerAddress("a b", 1, 2), "'a' has no valid host"),
        (PeerAddress("tcp://x", 1, 2), "'a' has no valid host"),
        (PeerAddress("ä", 1, 2), "'a' has no valid host"),
        (PeerAddress("x" * 1000, 1, 2), "'a' has no valid host"),
        (PeerAddress("desk", 0, 2), "'a' has no valid ports"),
        (PeerAddress("desk", 1, 65536), "'a' has no valid ports"),
    ],
)
def test_anything_else_is_refused(address: PeerAddress, said: str) -> None:
    with pytest.raises(InvalidInput, match=said) as caught:
        address.require_usable("a")
    assert len(str(caught.value)) < 400
