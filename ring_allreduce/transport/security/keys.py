"""Who a member is when traffic is encrypted: its key pair, the list of members and their public keys, and their files.

    desk.key    public: 3f0c…            allowed.keys    desk   3f0c…
                secret: 91ab…                            attic  77d2…

Keys are shown as 64 hexadecimal digits, which no shell and no YAML changes. An allow-list binds each name to one public
key, and no two names share one. The files are text in UTF-8, in which lines that begin with # are comments; they are
written with mode 0600 and never over an existing file. A secret appears in no repr and in no message.
"""

import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import zmq
from zmq.utils import z85

from ring_allreduce.errors import InvalidInput

_KEY = re.compile(r"[0-9a-f]{64}", re.ASCII)
_NAME = re.compile(r"[^\s#]\S{0,99}")
NAME_EXPECTED = "a name has 1 to 100 characters, none of them a space, and does not begin with #"
KEY_EXPECTED = "a key is 64 hexadecimal digits in lower case"
_MOST_BYTES = 1 << 20


@dataclass(frozen=True)
class KeyPair:
    """A CurveZMQ (Curve25519) key pair. `public` may be known to anyone; `secret` stays on its machine."""

    public: str
    secret: str = field(repr=False)

    def __post_init__(self) -> None:
        """Raises InvalidInput when one is no key, they do not belong together, or zmq cannot encrypt here."""
        _require_curve()
        for key, value in (("public", self.public), ("secret", self.secret)):
            if not is_key(value):
                raise InvalidInput(KEY_EXPECTED, key=key)
        if _hex(zmq.curve_public(z85.encode(bytes.fromhex(self.secret)))) != self.public:
            raise InvalidInput("this is not the public key that belongs to the secret one", key="public")

    @classmethod
    def of_secret(cls, secret: str) -> "KeyPair":
        """Return the pair of a secret key, 64 hexadecimal digits. Raises InvalidInput for anything else."""
        _require_curve()
        if not is_key(secret):
            raise InvalidInput(KEY_EXPECTED, key="secret")
        return cls(_hex(zmq.curve_public(z85.encode(bytes.fromhex(secret)))), secret)

    @classmethod
    def make(cls) -> "KeyPair":
        """Return a new pair, from the system's randomness. Raises InvalidInput when zmq cannot encrypt here."""
        _require_curve()
        public, secret = zmq.curve_keypair()
        return cls(_hex(public), _hex(secret))


@dataclass(frozen=True)
class Keys:
    """What an endpoint encrypts with: its own pair, and the public key of each member that is `allowed`, by its name.

    A peer is heard only when it proves that it holds the secret behind an allowed key, and only under the name of that
    key. All members of a run hold the same list, with themselves in it.
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
        """Return the public key of a member. Raises InvalidInput when the list does not hold it."""
        if name not in self.allowed:
            raise InvalidInput(f"the allow-list has no member {name!r}; it has {', '.join(sorted(self.allowed))}")
        return self.allowed[name]

    @cached_property
    def names(self) -> Mapping[bytes, str]:
        """Return the member's name by the 32 bytes of its public key."""
        return {bytes.fromhex(public): name for name, public in self.allowed.items()}


def is_key(value: str) -> bool:
    """Say whether `value` has the form of a public or secret key."""
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


def read_keys(key_file: str | Path, allow_list: str | Path) -> Keys:
    """Return the keys that `Group.join`, `Rendezvous` and `ZmqEndpoint` take, from their two files. Raises
    InvalidInput.
    """
    return Keys(read_key_pair(key_file), read_allow_list(allow_list))


def write_key_pair(path: str | Path, pair: KeyPair) -> None:
    """Write a new key file. Raises InvalidInput when the file exists or cannot be written."""
    text = (
        f"# A key pair of ring_allreduce. Whoever reads the secret can pass for this member.\npublic: {pair.public}\n"
    )
    _write_new(path, f"{text}secret: {pair.secret}\n")


def read_key_pair(path: str | Path) -> KeyPair:
    """Return the key pair in a file that write_key_pair() wrote.

    Raises InvalidInput, with file and key, for any other content, and when others than its owner may read the file.
    """
    found: dict[str, str] = {}
    for number, line in _lines(path, private=True):
        key, colon, value = line.partition(":")
        if not colon or key not in ("public", "secret") or key in found:
            expected = "expected one line `public: KEY` and one `secret: KEY`"
            raise InvalidInput(expected, path=str(path), key=f"line {number}")
        found[key] = value.strip()
    for key in ("public", "secret"):
        if key not in found:
            raise InvalidInput(f"expected a line `{key}: KEY`", path=str(path), key=key)
    try:
        return KeyPair(found["public"], found["secret"])
    except InvalidInput as error:
        raise InvalidInput(str(error), path=str(path)) from None


def write_allow_list(path: str | Path, allowed: Mapping[str, str]) -> None:
    """Write a new allow-list. `allowed`: public key by member's name.

    Raises InvalidInput for a list that is not valid, or when the file exists.
    """
    require_allow_list(allowed)
    width = max((len(name) for name in allowed), default=0)
    lines = [f"{name:<{width}}  {public}\n" for name, public in allowed.items()]
    _write_new(path, "".join(["# The members of a group of ring_allreduce: name and public key.\n", *lines]))


def read_allow_list(path: str | Path) -> dict[str, str]:
    """Public key by member's name. Raises InvalidInput with file and member or line."""
    allowed: dict[str, str] = {}
    for number, line in _lines(path, private=False):
        fields = line.split()
        if len(fields) != 2:
            raise InvalidInput("expected a member's name and its public key", path=str(path), key=f"line {number}")
        if fields[0] in allowed:
            raise InvalidInput("the member stands there twice", path=str(path), key=fields[0])
        allowed[fields[0]] = fields[1]
    if not allowed:
        raise InvalidInput("expected at least one line with a member's name and its public key", path=str(path))
    try:
        require_allow_list(allowed)
    except InvalidInput as error:
        raise InvalidInput(str(error), path=str(path)) from None
    return allowed


def _require_curve() -> None:
    if not zmq.has("curve"):
        raise InvalidInput("this pyzmq was built without CurveZMQ: install one with it, or go without encryption")


def _hex(z85_key: bytes) -> str:
    return z85.decode(z85_key).hex()


def _write_new(path: str | Path, text: str) -> None:
    try:
        # The mode counts from the first moment: nobody can open the file before a chmod.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise InvalidInput("there is a file already, and keys are never written over", path=str(path)) from None
    except OSError as error:
        raise InvalidInput(f"cannot be written ({error.strerror})", path=str(path)) from None
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)


def _lines(path: str | Path, *, private: bool) -> Iterator[tuple[int, str]]:
    """Return the lines that are neither empty nor comments, with their numbers."""
    try:
        with Path(path).open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            if private and stat.S_IMODE(mode) & 0o077:
                shown = f"{stat.S_IMODE(mode):04o}"
                raise InvalidInput(f"others may read it (mode {shown}): make new keys, or chmod 600", path=str(path))
            data = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise InvalidInput(f"cannot be read ({error.strerror})", path=str(path)) from None
    if len(data) > _MOST_BYTES:
        raise InvalidInput(f"expected at most {_MOST_BYTES} bytes", path=str(path))
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise InvalidInput("expected text in UTF-8", path=str(path)) from None
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip() and not line.startswith("#"):
            yield number, line.strip()
