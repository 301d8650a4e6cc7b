"""A node's key pair (Ed25519), and its file.

In: a path. Out: an identity that signs, and checks the signatures of others.
"""

from __future__ import annotations

import os
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from ravnest.errors import InvalidInput


class KeyIdentity:
    """Signs with a private key of Ed25519."""

    def __init__(self, private_key: Ed25519PrivateKey) -> None:
        self._private_key = private_key
        self._public_key = private_key.public_key().public_bytes_raw()

    @property
    def public_key(self) -> bytes:
        return self._public_key

    def sign(self, data: bytes) -> bytes:
        """The signature of `data`, 64 bytes."""
        return self._private_key.sign(data)

    def verify(self, public_key: bytes, data: bytes, signature: bytes) -> bool:
        """Whether the signature is of `data` and of the owner of this public key."""
        try:
            Ed25519PublicKey.from_public_bytes(public_key).verify(signature, data)
        except (InvalidSignature, ValueError):
            return False
        return True

    def write(self, path: Path) -> None:
        """Write the private key, readable by its owner only. Raises InvalidInput when the file exists."""
        pem = self._private_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            raise InvalidInput("exists already, and is not overwritten", path=str(path)) from None
        with os.fdopen(descriptor, "wb") as file:
            file.write(pem)


def new_identity() -> KeyIdentity:
    """An identity that nobody had before."""
    return KeyIdentity(Ed25519PrivateKey.generate())


def read_identity(path: Path) -> KeyIdentity:
    """The identity in a file that `KeyIdentity.write` wrote. Raises InvalidInput when it holds none."""
    try:
        key = load_pem_private_key(path.read_bytes(), password=None)
    except OSError as error:
        raise InvalidInput(f"cannot be read: {error.strerror or error}", path=str(path)) from error
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise InvalidInput("expected a private key in PEM form without a password", path=str(path)) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise InvalidInput("expected a private key of Ed25519", path=str(path))
    return KeyIdentity(key)
