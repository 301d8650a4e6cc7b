"""A stream to somebody who is not on the allow-list is refused before anything is sent.

What streams carry, and how they end, is tested in tests/integration/test_encrypted_streams.py.
"""

import pytest

from ring_allreduce.errors import InvalidInput
from ring_allreduce.transport.security.keys import KeyPair, Keys
from ring_allreduce.transport.zmq.encrypted_streams import EncryptedStream


def test_a_peer_that_is_not_allowed_is_refused() -> None:
    own = KeyPair.make()
    with pytest.raises(InvalidInput, match="no member 'rendezvous'"):
        EncryptedStream("127.0.0.1", 1, Keys(own, {"a": own.public}), "rendezvous", timeout_s=60.0)
