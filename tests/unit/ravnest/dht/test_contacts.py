import pytest

from ravnest.dht.contacts import (
    ID_BYTES,
    Address,
    Contact,
    distance,
    key_id,
    may_be_told,
    network_of,
    node_id,
)

HOME, LOOPBACK, PUBLIC, OTHER = bytes([192, 168, 1, 2]), bytes([127, 0, 0, 1]), bytes([8, 8, 8, 8]), bytes([1, 1, 1, 1])
PUBLIC_6 = bytes.fromhex("2a00145040010809000000000000200e")


def test_ids_have_160_bits_and_a_key_is_no_node() -> None:
    assert len(node_id(b"x")) == len(key_id(b"x")) == ID_BYTES
    assert node_id(b"x") != key_id(b"x")
    assert distance(b"\x00" * 19 + b"\x05", b"\x00" * 19 + b"\x03") == 6


def test_an_address_is_written_with_its_port() -> None:
    assert str(Address(HOME, 70)) == "192.168.1.2:70"
    assert str(Contact(key_id(b"x"), PUBLIC_6, 1).address) == "[2a00:1450:4001:809::200e]:1"


def test_a_network_is_what_one_person_easily_has_and_local_addresses_are_none() -> None:
    assert network_of(PUBLIC) == PUBLIC[:3]
    assert network_of(PUBLIC_6) == PUBLIC_6[:6]
    assert network_of(HOME) is network_of(LOOPBACK) is network_of(b"\x01" * 5) is None


@pytest.mark.parametrize(
    ("ip", "teller", "believed"),
    [
        (PUBLIC, OTHER, True),
        (PUBLIC, HOME, True),
        (HOME, HOME, True),
        (LOOPBACK, HOME, True),
        (HOME, PUBLIC, False),
        (LOOPBACK, PUBLIC_6, False),
        (bytes([224, 0, 0, 1]), HOME, False),
        (bytes(4), HOME, False),
        (bytes(16), HOME, False),
        (b"\x01" * 5, HOME, False),
        (bytes(10) + b"\xff\xff" + HOME, PUBLIC, False),
    ],
)
def test_nobody_of_the_internet_sends_a_node_into_a_home(ip: bytes, teller: bytes, believed: bool) -> None:
    assert may_be_told(ip, teller) is believed
