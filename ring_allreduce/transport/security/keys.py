"""Who a member is when traffic is encrypted: its key pair, and the allow-list that binds each name to one public key.

Decides what valid keys are, in which form they are shown (64 hexadecimal digits, which no shell or YAML mangles), and
that two names never share one. Knows no file and no socket; a secret appears in no repr and in no message.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import zmq
from zmq.utils import z85

from ring_allreduce.errors import InvalidInput

_KEY = re.compile(r"[0-9a-f]{64}", re.ASCII)
_NAME = re.compile(r"[^\s#]\S{0,99}")
NAME_EXPECTED = "a name has 1 to 100 characters, none of them a space, and does not begin with #"
KEY_EXPECTED = "a key is 64 hexadecimal digits in lower case"


@dataclass(frozen=True)
class KeyPair:
    """A CurveZMQ (Curve25519) key pair. `public` may be known to anyone; `secret` stays on its machine."""

    public: str
    secret: str = field(repr=False)

    def __post_init__(self) -> None:
        """Raises InvalidInput when one of them is no key, they do not belong together, or zmq cannot encrypt here."""
        _require_curve()
        for key, value in (("public", self.public), ("secret", self.secret)):
            if not is_key(value):
                raise InvalidInput(KEY_EXPECTED, key=key)
        if _hex(zmq.curve_public(z85.encode(bytes.fromhex(self.secret)))) != self.public:
            raise InvalidInput("this is not the public key that belongs to the secret one", key="public")

    @classmethod
    def make(cls) -> "KeyPair":
        """A new pair, from the system's randomness. Raises InvalidInput when zmq cannot encrypt here."""
        _require_curve()
        public, secret = zmq.curve_keypair()
        return cls(_hex(public), _hex(secret))


@dataclass(frozen=True)
class Keys:
    """What an endpoint encrypts with: its own pair, and `allowed`: the public key of each member by its name.

    Only who proves that it holds the secret behind an allowed key is heard, and only in the name that the key is
    listed under. All members of a run hold the same list, with themselves in it.
    """

    own: KeyPair
    allowed: Mapping[str, str]

    def __post_init__(self) -> None:
        """Raises InvalidInput, naming the member, for what cannot be an allow-list."""
        require_allow_list(self.allowed)

    def require_own_name(self, name: str) -> None:
        """Raises InvalidInput unless the list holds `name` under this pair's public key."""
        if self.public_of(name) != self.own.public:
            raise InvalidInput(f"the allow-list has another public key than its own, {self.own.public}", key=name)

    def public_of(self, name: str) -> str:
        """The public key of a member. Raises InvalidInput when the list does not hold it."""
        if name not in self.allowed:
            raise InvalidInput(f"the allow-list has no member {name!r}; it has {', '.join(sorted(self.allowed))}")
        return self.allowed[name]

    @cached_property
    def names(self) -> Mapping[bytes, str]:
        """The member's name by the 32 bytes of its public key."""
        return {bytes.fromhex(public): name for name, public in self.allowed.items()}


def is_key(value: str) -> bool:
    """Whether `value` has the form of a public or secret key."""
    return _KEY.fullmatch(value) is not None


def require_allow_list(allowed: Mapping[str, str]) -> None:
    """Raises InvalidInput, naming the member, for a name or key of wrong form, or a key that two names have."""
    owners: dict[str, str] = {}
    for name, public in allowed.items():
        if not _NAME.fullmatch(name) or not name.isprintable():
            raise InvalidInput(f"{NAME_EXPECTED}; got {name[:100]!r}")
        if not is_key(public):
            raise InvalidInput(KEY_EXPECTED, key=name)
        if public in owners:
            raise InvalidInput(f"its key is that of {owners[public]!r}, too: each member has its own", key=name)
        owners[public] = name


def _require_curve() -> None:
    if not zmq.has("curve"):
        raise InvalidInput("this pyzmq was built without CurveZMQ: install one with it, or go without encryption")


def _hex(z85_key: bytes) -> str:
    return z85.decode(z85_key).hex()
