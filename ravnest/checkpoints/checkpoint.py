"""A run's checkpoints on disk: only complete ones are ever found, whatever happens while they are written.

    CHECKPOINTS/latest                                 the name of the checkpoint to resume from
    CHECKPOINTS/checkpoint-000007/manifest.json        see Manifest
                                  segment-000.safetensors        a segment's anchor and buffers, original names
                                  optimizer-c0-000.safetensors   a stage's optimizer state: PARAMETER.KEY

The files of a checkpoint are written and synced in a hidden folder, which is then renamed, and only then named in
`latest`; the last two checkpoints are kept. So a crash at any point leaves `latest` naming a complete one. The caller
of commit() says which files make a checkpoint complete, and one that lacks a file is refused. One process writes.

In: named tensors of segments and of optimizers. Out: the same tensors, of the latest checkpoint.
"""

import contextlib
import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from urllib.parse import quote

import msgspec
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ravnest.checkpoints.durable_files import DurableFiles, sha256_of
from ravnest.errors import InvalidInput, RunFailed

LATEST = "latest"
KEPT = 2
FORMAT_VERSION = 1
MANIFEST = "manifest.json"
_PREFIX = "checkpoint-"
_UNFINISHED = ".unfinished-"
_DISCARDED = ".discarded-"


class FileEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The size and the hash of one file of a checkpoint."""

    bytes: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The content of manifest.json: what the checkpoint is of, and which files with which bytes make it complete."""

    format_version: int = FORMAT_VERSION
    round: int
    """The committed round whose anchor was saved."""

    samples: int
    """The samples of the fleet that the weights were trained on, from the run's first start."""

    versions: dict[str, int]
    """The updates of each cluster in the weights. Its sampler goes on at micro-batch version · update_every."""

    made_with: dict[str, str]
    """What a run that resumes has to have in common: keys of the plan, and their values as text."""

    files: dict[str, FileEntry]


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


class CheckpointWriter:
    """Writes one checkpoint. Its parts come in any order; nothing is visible before `commit`.

    Every method raises RunFailed when the disk refuses.
    """

    def __init__(
        self,
        folder: Path,
        *,
        round: int,  # noqa: A002 - our word
        samples: int,
        versions: Mapping[str, int],
        made_with: Mapping[str, str],
        files: DurableFiles | None = None,
    ) -> None:
        """Begin a checkpoint in `folder`, which holds all of the run. What a crash left unfinished there is removed.

        `round`, `samples`, `versions`, `made_with`: see Manifest. `files`: the operations on files, for tests.
        """
        self._folder = folder
        self._files = DurableFiles() if files is None else files
        # Named by process: what this one has under way, in this thread or another, is no leftover of a crash.
        under_way = (f"{_UNFINISHED}{os.getpid()}-", f"{_DISCARDED}{os.getpid()}-")
        self._unfinished = folder / f"{_UNFINISHED}{os.getpid()}-{round}"
        with _told(folder):
            self._files.make_folder(folder)
            for left in [*folder.glob(f"{_UNFINISHED}*"), *folder.glob(f"{_DISCARDED}*")]:
                if left == self._unfinished or not left.name.startswith(under_way):
                    self._files.remove_folder(left)
            self._files.make_folder(self._unfinished)
        self._round, self._samples = round, samples
        self._versions, self._made_with = dict(versions), dict(made_with)
        self._begun: set[str] = set()
        self._entries: dict[str, FileEntry] = {}

    def add_segment(self, segment: int, tensors: Mapping[str, Tensor]) -> None:
        """Write the anchor of a segment, under the original names. `segment` is its number within the plan."""
        self._add(segment_file(segment), tensors)

    def add_optimizer(self, cluster: str, stage: int, state: Mapping[tuple[str, str], Tensor]) -> None:
        """Write a stage's optimizer state, as `VersionedWeights.optimizer_state` gives it."""
        self._add(optimizer_file(cluster, stage), {f"{name}.{key}": value for (name, key), value in state.items()})

    def commit(self, parts: Collection[str]) -> Path:
        """Make the checkpoint the latest, remove all but the last two, and return its folder.

        `parts`: the files without which it is not complete. RunFailed is raised, and nothing is committed, when it
        lacks any of them or a part that was begun could not be written.
        """
        lacking = sorted({*parts, *self._begun} - self._entries.keys())
        if lacking:
            lacks = ", ".join(lacking)
            raise RunFailed(f"{self._folder}: the checkpoint of round {self._round} is not complete: it lacks {lacks}")
        manifest = Manifest(
            round=self._round,
            samples=self._samples,
            versions=self._versions,
            made_with=self._made_with,
            files=self._entries,
        )
        with _told(self._folder):
            return self._publish(encode_manifest(manifest))

    def _publish(self, manifest: bytes) -> Path:
        name = f"{_PREFIX}{_next_number(self._folder):06d}"
        files, final = self._files, self._folder / name
        files.write_bytes(self._unfinished / MANIFEST, manifest)
        files.sync_file(self._unfinished / MANIFEST)
        files.sync_folder(self._unfinished)
        files.move(self._unfinished, final)
        files.sync_folder(self._folder)
        pointer = self._folder / f".{LATEST}.new"
        files.write_bytes(pointer, f"{name}\n".encode())
        files.sync_file(pointer)
        files.move(pointer, self._folder / LATEST)
        files.sync_folder(self._folder)
        for old in _finished(self._folder)[:-KEPT]:
            # Renamed first: a folder with a checkpoint's name is never half a checkpoint.
            discarded = self._folder / f"{_DISCARDED}{os.getpid()}-{old.name}"
            files.move(old, discarded)
            files.remove_folder(discarded)
        return final

    def _add(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        if name in self._begun:
            raise ValueError(f"{name} is in this checkpoint already")
        self._begun.add(name)
        path = self._unfinished / name
        with _told(path):
            self._files.write_tensors(path, tensors)
            self._files.sync_file(path)
            self._entries[name] = FileEntry(bytes=path.stat().st_size, sha256=sha256_of(path))


class Checkpoint:
    """A complete checkpoint. It is read lazily: only the tensors that are asked for are loaded."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder = folder
        self.manifest = manifest

    def weights(self, names: Collection[str] | None = None) -> dict[str, Tensor]:
        """The parameters and buffers by original name: those of `names` that it holds, or all without `names`."""
        found: dict[str, Tensor] = {}
        for name in sorted(self.manifest.files):
            if name.startswith("segment-"):
                found |= _read(self.folder / name, names)
        return found

    def require(self, parts: Collection[str]) -> None:
        """Raises InvalidInput, naming what is missing, unless it holds all these files."""
        lacking = _lacking(self.manifest, parts)
        if lacking:
            raise _refused(self.folder, f"not complete: it lacks {', '.join(lacking)}", parts)

    def optimizer(self, cluster: str, stage: int) -> dict[tuple[str, str], Tensor]:
        """The optimizer state of a stage. Raises InvalidInput when the checkpoint knows no such stage."""
        name = optimizer_file(cluster, stage)
        if name not in self.manifest.files:
            raise InvalidInput(f"no optimizer state of stage {stage} of {cluster!r}", path=str(self.folder))
        state = {}
        for joined, tensor in _read(self.folder / name, None).items():
            parameter, _, key = joined.rpartition(".")
            state[parameter, key] = tensor
        return state


def load_latest(folder: Path, parts: Collection[str]) -> Checkpoint:
    """The run's latest checkpoint, every file of it checked against its size and hash.

    `parts`: the files without which it is not complete. Raises InvalidInput when there is none, or when it is damaged
    or lacks a part: an older one is kept, but choosing it is up to the user, whom the message tells how.
    """
    checkpoint = open_latest(folder, parts)
    checkpoint.require(parts)
    return checkpoint


def open_latest(folder: Path, parts: Collection[str]) -> Checkpoint:
    """As `load_latest`, for a caller who first sees whether it is of this plan at all, and then requires `parts`."""
    name = name_of_latest(folder)
    if name is None:
        raise InvalidInput("holds no complete checkpoint", path=str(folder))
    chosen = folder / name
    try:
        return Checkpoint(chosen, _checked(chosen))
    except (ValueError, OSError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise _refused(chosen, f"damaged: {reason}", parts) from error


def name_of_latest(folder: Path) -> str | None:
    """The name of the run's latest checkpoint, None before the first; it is not looked into.

    Raises InvalidInput for a name that is no checkpoint's.
    """
    pointer = folder / LATEST
    if not pointer.is_file():
        return None
    name = pointer.read_text(encoding="utf-8").strip()
    if not name.startswith(_PREFIX) or "/" in name:
        raise InvalidInput(f"must name a folder {_PREFIX}NUMBER beside it, not {name!r}", path=str(pointer))
    return name


def write_final_weights(path: Path, tensors: Mapping[str, Tensor], files: DurableFiles | None = None) -> None:
    """Replace `path` at once by a safetensors file of `tensors`. Raises RunFailed when the disk refuses."""
    files = DurableFiles() if files is None else files
    unfinished = path.with_name(f".{path.name}.new")
    with _told(path):
        files.make_folder(path.parent)
        files.write_tensors(unfinished, tensors)
        files.sync_file(unfinished)
        files.move(unfinished, path)
        files.sync_folder(path.parent)


def segment_file(segment: int) -> str:
    """The file of a segment, by its number within the plan."""
    return f"segment-{segment:03d}.safetensors"


def optimizer_file(cluster: str, stage: int) -> str:
    """The file of a stage's optimizer state."""
    return f"optimizer-{quote(cluster, safe='')}-{stage:03d}.safetensors"


@contextlib.contextmanager
def _told(path: Path) -> Iterator[None]:
    """Turn the error of a full or failing disk into a RunFailed of one line."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise RunFailed(f"{path}: cannot be written: {reason}") from error


def _finished(folder: Path) -> list[Path]:
    """Complete checkpoints, oldest first."""
    found = [path for path in folder.glob(f"{_PREFIX}*") if path.name.removeprefix(_PREFIX).isdecimal()]
    return sorted(found, key=_number)


def _number(path: Path) -> int:
    return int(path.name.removeprefix(_PREFIX))


def _next_number(folder: Path) -> int:
    finished = _finished(folder)
    return _number(finished[-1]) + 1 if finished else 1


def _checked(checkpoint: Path) -> Manifest:
    """The manifest of a checkpoint whose files are all as they were written. Raises ValueError or OSError otherwise."""
    manifest = decode_manifest((checkpoint / MANIFEST).read_bytes())
    for file, entry in manifest.files.items():
        _check(checkpoint / file, entry)
    return manifest


def _lacking(manifest: Manifest, parts: Collection[str]) -> list[str]:
    return sorted(set(parts) - manifest.files.keys())


def _refused(latest: Path, what: str, parts: Collection[str]) -> InvalidInput:
    """Why the latest checkpoint cannot be used, and which one can."""
    advice = "no other complete one is kept"
    for other in reversed(_finished(latest.parent)):
        if other != latest and _complete(other, parts):
            advice = f"to resume from {other.name}, write that name into {latest.parent / LATEST}"
            break
    return InvalidInput(f"the latest checkpoint is {what}; {advice}", path=str(latest))


def _complete(checkpoint: Path, parts: Collection[str]) -> bool:
    try:
        return not _lacking(_checked(checkpoint), parts)
    except (ValueError, OSError):
        return False


def _check(path: Path, entry: FileEntry) -> None:
    if not path.is_file():
        raise ValueError(f"{path.name} is missing")
    if path.stat().st_size != entry.bytes:
        raise ValueError(f"{path.name} has {path.stat().st_size} bytes, not {entry.bytes}")
    if sha256_of(path) != entry.sha256:
        raise ValueError(f"the contents of {path.name} have changed")


def _read(path: Path, names: Collection[str] | None) -> dict[str, Tensor]:
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys() if names is None or name in names}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise InvalidInput(f"cannot be read: {' '.join(str(error).split())}", path=str(path)) from error
