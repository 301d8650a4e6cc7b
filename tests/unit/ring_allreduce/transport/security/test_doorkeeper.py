"""Only connections that show the run's token, or an allowed key where there are keys, are admitted."""

from ring_allreduce.transport.security.doorkeeper import admitted
from ring_allreduce.transport.security.keys import KeyPair, Keys

TOKEN = bytes(range(16))
SHOWN = b"member" + TOKEN.hex().encode()


def test_without_keys_the_token_is_asked_for() -> None:
    assert admitted(b"PLAIN", SHOWN, TOKEN, None) == b"member"
    for mechanism, shown in ((b"PLAIN", b"member" + bytes(16).hex().encode()), (b"NULL", SHOWN), (b"CURVE", SHOWN)):
        assert admitted(mechanism, shown, TOKEN, None) is None
    assert admitted(b"PLAIN", b"", TOKEN, None) is None


def test_with_keys_the_name_is_that_of_the_key_and_the_token_admits_nobody() -> None:
    own, other, stranger = (KeyPair.make() for _ in range(3))
    keys = Keys(own, {"a": own.public, "b": other.public})
    assert admitted(b"CURVE", bytes.fromhex(other.public), TOKEN, keys) == b"b"
    assert admitted(b"CURVE", bytes.fromhex(stranger.public), TOKEN, keys) is None
    assert admitted(b"PLAIN", SHOWN, TOKEN, keys) is None
