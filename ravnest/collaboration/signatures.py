"""Signatures of a job's code by moderators: keys that a volunteer trusts to have read it.

In: an Ed25519 key and the code's hash, or lines that others have made. Out: one line of text for each signature, and
which keys of a keyring have signed. A moderator need not own the backbone, and the backbone need not be trusted: it can
only pass lines on that it cannot make.

    signatures.txt      in the backbone's folder: the lines, one for each moderator
    a keyring           of a volunteer: public keys, one a line in hexadecimal digits; # begins a comment
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

from ravnest.dht import KeyIdentity, new_identity
from ravnest.errors import InvalidInput

FILE = "signatures.txt"
MOST_SIGNATURES = 16
KEY_BYTES, SIGNATURE_BYTES = 32, 64
_PREFIX = "ravnest-signature-1:"


def signed(identity: KeyIdentity, code: str) -> str:
    """The line by which this key signs the code of that hash (hexadecimal digits)."""
    return f"{_PREFIX}{code}:{(identity.public_key + identity.sign(_text(code))).hex()}"


def signers(signatures: Iterable[bytes], code: str, keyring: Sequence[str]) -> list[str]:
    """The keys of the keyring that have signed the code of that hash; what is no signature of it counts for nothing."""
    verifier = new_identity()
    found = {
        one[:KEY_BYTES].hex() for one in signatures if verifier.verify(one[:KEY_BYTES], _text(code), one[KEY_BYTES:])
    }
    return [key for key in keyring if key in found]


def read_signatures(folder: Path, code: str) -> list[bytes]:
    """The signatures of the code of that hash in signatures.txt of a folder; none where there is no such file.

    Raises InvalidInput for a line that is none, or of other code.
    """
    path = folder / FILE
    if not path.exists():
        return []
    found, verifier = [], new_identity()
    for number, line in _lines(path):
        where = f"line {number}"
        prefix, _, rest = line.partition(_PREFIX)
        of_code, _, digits = rest.partition(":")
        try:
            signature = bytes.fromhex(digits)
        except ValueError:
            signature = b""
        if prefix or len(signature) != KEY_BYTES + SIGNATURE_BYTES:
            raise InvalidInput(f"expected a line that begins with {_PREFIX}", path=str(path), key=where)
        if of_code != code:
            raise InvalidInput(
                f"signs other code ({of_code[:16]}) than the job's folder holds ({code[:16]})",
                path=str(path),
                key=where,
                hint="let it be signed again by ravnest collaborate sign, or remove the line",
            )
        if not verifier.verify(signature[:KEY_BYTES], _text(code), signature[KEY_BYTES:]):
            raise InvalidInput("is no signature of its key", path=str(path), key=where)
        found.append(signature)
    if len(found) > MOST_SIGNATURES:
        raise InvalidInput(f"holds {len(found)} signatures; expected at most {MOST_SIGNATURES}", path=str(path))
    return found


def read_keyring(path: Path) -> list[str]:
    """The public keys in a file. Raises InvalidInput for a file without any, or a line that is none."""
    keys = []
    for number, line in _lines(path):
        try:
            usable = len(bytes.fromhex(line)) == KEY_BYTES
        except ValueError:
            usable = False
        if not usable:
            raise InvalidInput("expected a public key of 64 hexadecimal digits", path=str(path), key=f"line {number}")
        keys.append(line.lower())
    if not keys:
        raise InvalidInput("expected at least one public key", path=str(path))
    return keys


def _text(code: str) -> bytes:
    return b"ravnest code is read and signed 1 " + code.encode()


def _lines(path: Path) -> list[tuple[int, str]]:
    """The lines that are neither empty nor comments, with their numbers. Raises InvalidInput."""
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"cannot be read: {error}", path=str(path)) from None
    stripped = [(number, line.partition("#")[0].strip()) for number, line in enumerate(lines, 1)]
    return [(number, line) for number, line in stripped if line]
