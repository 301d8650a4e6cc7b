"""The manifest of a checkpoint: what it is of, and which files with which bytes make it complete.

In: a `Manifest`. Out: the bytes of manifest.json, and a manifest again, every value of it checked. The names of a
checkpoint's files are made here, too.
"""

from typing import Annotated
from urllib.parse import quote

import msgspec

from ravnest.job_sections import MOST

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
SEGMENTS = "segment-"
"""How the names of the files begin that hold segments."""
OPTIMIZERS = "optimizer-"
"""How the names of the files begin that hold optimizer state."""

_Count = Annotated[int, msgspec.Meta(ge=0, le=MOST)]
_FileName = Annotated[str, msgspec.Meta(pattern=r"^[^/\x00]+\.safetensors$")]


class FileEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The size and the hash of one file of a checkpoint."""

    bytes: _Count
    sha256: str


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The content of manifest.json: what the checkpoint is of, and which files with which bytes make it complete."""

    format_version: int = FORMAT_VERSION
    round: _Count
    """The committed round whose anchor was saved."""

    samples: _Count
    """The samples of the fleet that the weights were trained on, from the run's first start."""

    versions: dict[str, _Count]
    """The updates of each cluster in the weights. Its sampler goes on at micro-batch version · update_every."""

    made_with: dict[str, str]
    """What a run that resumes has to have in common: keys of the plan, and their values as text."""

    files: dict[_FileName, FileEntry]

    lost: tuple[str, ...] = ()
    """The clusters that were lost before the round, of whose stages there is no optimizer state."""

    unmade: dict[str, _Count] = {}
    """Of the updates of a cluster that came during the run: those from which its schedule began, and nobody made."""


def encode_manifest(manifest: Manifest) -> bytes:
    """The bytes of manifest.json, indented for people."""
    return msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n"


def decode_manifest(data: bytes) -> Manifest:
    """The manifest in `data`. Raises ValueError, saying what is wrong, for another version or malformed data."""
    try:
        version = msgspec.json.decode(data, type=_AnyVersion).format_version
        if version != FORMAT_VERSION:
            raise ValueError(f"has format version {version}; this ravnest reads {FORMAT_VERSION}")
        return msgspec.json.decode(data, type=Manifest)
    except msgspec.DecodeError as error:  # ValidationError is one of them
        raise ValueError(f"is not a manifest: {error}") from None


class _AnyVersion(msgspec.Struct):
    format_version: int


def segment_file(segment: int) -> str:
    """The file of a segment, by its number within the plan."""
    return f"{SEGMENTS}{segment:03d}.safetensors"


def optimizer_file(cluster: str, stage: int) -> str:
    """The file of a stage's optimizer state."""
    return f"{optimizer_prefix(cluster)}{stage:03d}.safetensors"


def optimizer_prefix(cluster: str) -> str:
    """How the names of the files with the optimizer state of a cluster begin."""
    return f"{OPTIMIZERS}{quote(cluster, safe='')}-"
