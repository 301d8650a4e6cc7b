"""Key pairs and allow-lists: what is valid, and that a secret never shows."""

import pytest

from ring_allreduce import InvalidInput
from ring_allreduce.transport.security.keys import KeyPair, Keys, is_key

A, B = KeyPair.make(), KeyPair.make()
ALLOWED = {"a": A.public, "b": B.public}


def test_pairs_differ_and_are_sixty_four_hexadecimal_digits():
    assert len({A.public, A.secret, B.public, B.secret}) == 4
    assert all(is_key(key) for key in (A.public, A.secret, B.public, B.secret))


def test_a_pair_is_what_it_says_and_never_shows_its_secret():
    again = KeyPair(A.public, A.secret)
    assert again == A
    for shown in (repr(A), str(A), repr(Keys(A, ALLOWED)), f"{A}"):
        assert A.secret not in shown
        assert A.public in shown


@pytest.mark.parametrize("value", ["", "f" * 63, "f" * 65, "F" * 64, "g" * 64, "f" * 64 + "\n", "٣" * 64])
def test_what_is_no_key_is_refused_without_being_repeated(value):
    for public, secret, key in ((value, A.secret, "public"), (A.public, value, "secret")):
        with pytest.raises(InvalidInput, match=f"^{key}: a key is 64 hexadecimal digits") as caught:
            KeyPair(public, secret)
        assert not value or value not in str(caught.value)


def test_halves_of_two_pairs_are_refused():
    with pytest.raises(InvalidInput, match=r"^public: this is not the public key that belongs") as caught:
        KeyPair(A.public, B.secret)
    assert B.secret not in str(caught.value)


@pytest.mark.parametrize(
    ("allowed", "expected"),
    [
        ({"a": "short"}, "a: a key is 64 hexadecimal digits"),
        ({"a": A.public, "b": A.public}, "b: its key is that of 'a', too"),
        ({"": A.public}, "a name has 1 to 100 characters"),
        ({"two words": A.public}, "none of them a space"),
        ({"#a": A.public}, "does not begin with #"),
        ({"a\0b": A.public}, "a name has 1 to 100 characters"),
        ({"n" * 101: A.public}, "a name has 1 to 100 characters"),
    ],
)
def test_an_allow_list_is_checked(allowed, expected):
    with pytest.raises(InvalidInput, match=expected):
        Keys(A, allowed)


def test_a_member_has_to_be_in_its_own_list_under_its_own_key():
    keys = Keys(A, ALLOWED)
    keys.require_own_name("a")
    with pytest.raises(InvalidInput, match=f"^b: the allow-list has another public key than its own, {A.public}$"):
        keys.require_own_name("b")
    with pytest.raises(InvalidInput, match=r"no member 'c'; it has a, b$"):
        keys.require_own_name("c")


def test_names_and_keys_lead_to_each_other():
    keys = Keys(A, ALLOWED)
    assert keys.public_of("b") == B.public
    assert keys.names == {bytes.fromhex(A.public): "a", bytes.fromhex(B.public): "b"}


def test_a_zmq_that_cannot_encrypt_is_told(monkeypatch):
    monkeypatch.setattr("zmq.has", lambda capability: False)
    for make in (KeyPair.make, lambda: KeyPair(A.public, A.secret)):
        with pytest.raises(InvalidInput, match="built without CurveZMQ"):
            make()
