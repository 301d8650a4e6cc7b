"""The contents page of a checkpoint: what it is of, and which files with which bytes make it whole.

Decides the format of manifest.json and refuses anything else. Does not know what the files hold.
"""

from collections.abc import Mapping

import msgspec

FORMAT_VERSION = 1
MANIFEST = "manifest.json"


class FileEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file of the checkpoint."""

    bytes: int
    sha256: str


class ClusterPosition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a cluster goes on."""

    next_micro_batch: int
    """The first one whose gradient is not in the checkpoint's weights, counted from the run's first start."""

    version: int
    """Updates that its stages have made."""


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A checkpoint's manifest.json."""

    format_version: int = FORMAT_VERSION
    round: int
    """The committed round whose anchor was saved."""

    samples: int
    """Of the fleet, from the run's first start."""

    plan_fingerprint: str
    clusters: dict[str, ClusterPosition]
    files: dict[str, FileEntry]

    @property
    def versions(self) -> Mapping[str, int]:
        """Each cluster's number of updates."""
        return {name: position.version for name, position in self.clusters.items()}


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
