"""The two small files of an encrypted group: a member's key pair, and the allow-list that all members share.

    desk.key    public: 3f0c…            allowed.keys    desk   3f0c…
                secret: 91ab…                            attic  77d2…

Text in UTF-8; lines that begin with # say something to people only. Both are written with mode 0600 and never over an
existing file. Decides the form and what is wrong with a file; what a valid key is, keys.py decides.
"""

import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from ring_allreduce.errors import InvalidInput
from ring_allreduce.transport.security.keys import KeyPair, Keys, require_allow_list

_MOST_BYTES = 1 << 20


def read_keys(key_file: str | Path, allow_list: str | Path) -> Keys:
    """What `Group.join`, `Rendezvous` and `ZmqEndpoint` take. Raises InvalidInput."""
    return Keys(read_key_pair(key_file), read_allow_list(allow_list))


def write_key_pair(path: str | Path, pair: KeyPair) -> None:
    """Raises InvalidInput when the file exists or cannot be written."""
    text = (
        f"# A key pair of ring_allreduce. Whoever reads the secret can pass for this member.\npublic: {pair.public}\n"
    )
    _write_new(path, f"{text}secret: {pair.secret}\n")


def read_key_pair(path: str | Path) -> KeyPair:
    """Raises InvalidInput, with file and key, for anything else than what write_key_pair() wrote, readable by its
    owner alone."""
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
    """`allowed`: public key by member's name. Raises InvalidInput for a wrong list, or when the file exists."""
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
    """Line numbers, and lines that say something."""
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
