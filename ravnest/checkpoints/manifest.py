"""The contents page of a checkpoint: what it is of, and which files with which bytes make it whole.

Decides the format of manifest.json and refuses anything else. Does not know what the files hold.
"""

import msgspec

FORMAT_VERSION = 1
MANIFEST = "manifest.json"


class FileEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file of the checkpoint."""

    bytes: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A checkpoint's manifest.json."""

    format_version: int = FORMAT_VERSION
    round: int
    """The committed round whose anchor was saved."""

    samples: int
    """Those behind the weights, of the fleet, from the run's first start."""

    versions: dict[str, int]
    """Each cluster's updates behind the weights. Its sampler goes on at micro-batch version · update_every."""

    made_with: dict[str, str]
    """What a run that resumes must be made with as well: keys of a plan, and their values as text."""

    files: dict[str, FileEntry]


def encode(manifest: Manifest) -> bytes:
    """The file's bytes, indented for people."""
    return msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n"


def decode(data: bytes) -> Manifest:
    """Raises ValueError, saying what is wrong, for another format or anything malformed."""
    try:
        version = msgspec.json.decode(data, type=_AnyVersion).format_version
        if version != FORMAT_VERSION:
            raise ValueError(f"has format version {version}; this ravnest reads {FORMAT_VERSION}")
        return msgspec.json.decode(data, type=Manifest)
    except msgspec.DecodeError as error:  # ValidationError is one of them
        raise ValueError(f"is not a manifest: {error}") from None


class _AnyVersion(msgspec.Struct):
    format_version: int
