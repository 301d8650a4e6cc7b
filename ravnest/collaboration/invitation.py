"""An invitation: one line of text with all that a volunteer needs to join. Whoever has it can join.

In: where the backbone listens and its keys. Out: a line, or from a line the same again; an InvalidInput for any other.
The guest key opens an encrypted line to the backbone and nothing else: who somebody is is proved by a key of their own.
"""

import base64
import binascii
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from ravnest.errors import InvalidInput
from ring_allreduce.transport import TOKEN_BYTES, KeyPair, Keys

BACKBONE, GUEST = "backbone", "guest"
_PREFIX = "ravnest-invitation-1:"
_MOST_CHARACTERS = 8192


@dataclass(frozen=True)
class Invitation:
    """What is in an invitation. Keys, token and hash are hexadecimal digits."""

    addresses: tuple[str, ...]
    """HOST:PORT of the backbone, or several; they are tried in their order."""
    backbone_public: str
    guest_public: str
    guest_secret: str
    token: str
    code_hash: str
    """Of the code that volunteers will run: the backbone can send no other."""

    def line(self) -> str:
        """The invitation as one line."""
        data = json.dumps(asdict(self), separators=(",", ":")).encode()
        return _PREFIX + base64.urlsafe_b64encode(data).decode().rstrip("=")

    def write(self, path: Path, key: str) -> None:
        """Write the line to a file that only the owner may read. Raises InvalidInput at `key`."""
        try:
            path.unlink(missing_ok=True)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except OSError as error:
            raise InvalidInput(f"cannot be written: {error.strerror}", path=str(path), key=key) from None
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(f"{self.line()}\n")

    def keys(self) -> Keys:
        """What a volunteer opens its line with. Raises InvalidInput for keys that are none."""
        pair = KeyPair(self.guest_public, self.guest_secret)
        return Keys(pair, {BACKBONE: self.backbone_public, GUEST: self.guest_public})

    def endpoints(self) -> list[tuple[str, int]]:
        """The addresses as (host, port). Raises InvalidInput."""
        return [endpoint(address) for address in self.addresses]


def read_invitation(line: str) -> Invitation:
    """The invitation in a line. Raises InvalidInput, which says what is wrong, for anything else."""
    text = line.strip()
    if not text.startswith(_PREFIX) or len(text) > _MOST_CHARACTERS:
        raise InvalidInput(f"expected one line that begins with {_PREFIX}", key="invitation")
    body = text.removeprefix(_PREFIX)
    try:
        data = base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))
        given = json.loads(data)
        addresses = tuple(given.pop("addresses"))
        invitation = Invitation(addresses=addresses, **given)
        texts = (*addresses, *(value for key, value in asdict(invitation).items() if key != "addresses"))
        if not addresses or not all(isinstance(one, str) for one in texts):
            raise ValueError("fields")
        if len(bytes.fromhex(invitation.token)) != TOKEN_BYTES or len(bytes.fromhex(invitation.code_hash)) != 32:
            raise ValueError("lengths")
    except (ValueError, TypeError, KeyError, AttributeError, binascii.Error, RecursionError):
        raise InvalidInput("is damaged: copy the whole line again", key="invitation") from None
    invitation.keys()
    invitation.endpoints()
    return invitation


def endpoint(address: str) -> tuple[str, int]:
    """(host, port) of HOST:PORT; an IPv6 address stands in brackets. Raises InvalidInput."""
    host, _, port = address.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    if not bare or not port.isdecimal() or not 0 < int(port) < 65536 or (":" in bare and bare == host):
        raise InvalidInput(f"expected HOST:PORT, not {address[:100]!r}", key="address")
    return bare, int(port)


def listening_at(listen: str) -> tuple[str, int]:
    """(host, port) to listen at, where the port may be 0: any free one. Raises InvalidInput."""
    host, _, port = listen.rpartition(":")
    if port == "0" and host:
        return host.removeprefix("[").removesuffix("]"), 0
    return endpoint(listen)
