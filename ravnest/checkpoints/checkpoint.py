"""A run's checkpoints on disk: only complete ones are ever found, whatever happens while they are written.

    CHECKPOINTS/latest                                 the name of the checkpoint to resume from
    CHECKPOINTS/checkpoint-000007/manifest.json        see Manifest
                                  segment-000.safetensors        a segment's anchor and buffers, original names
                                  optimizer-c0-000.safetensors   a stage's optimizer state: PARAMETER.KEY

The files of a checkpoint are written and synced in a hidden folder, which is then renamed, and only then named in
`latest`; the last few checkpoints are kept. So a crash at any point leaves `latest` naming a complete one. The caller
of commit() says which files make a checkpoint complete, and one that lacks a file is refused. One process writes.

In: the files of segments and of optimizers, in pieces. Out: their tensors by name, of the latest checkpoint.
"""

import contextlib
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

from safetensors import SafetensorError
from torch import Tensor

from ravnest.checkpoints.durable_files import DurableFiles, sha256_of
from ravnest.checkpoints.manifest import (
    MANIFEST,
    OPTIMIZERS,
    SEGMENTS,
    FileEntry,
    Manifest,
    decode_manifest,
    encode_manifest,
    optimizer_file,
    optimizer_prefix,
    segment_file,
)
from ravnest.checkpoints.tensor_stream import TensorForm, TensorStream, head_of, in_file_order
from ravnest.checkpoints.weight_files import StoredTensor, StoredTensors, WeightFiles, headers
from ravnest.errors import InvalidInput, NotWritten, RunFailed

LATEST = "latest"
KEPT = 2
"""How many checkpoints are kept where nothing else is said."""
_PREFIX = "checkpoint-"
_NAME = re.compile(_PREFIX + "[0-9]+")
_LONGEST_NAME = 64
_UNFINISHED = ".unfinished-"
_DISCARDED = ".discarded-"


class CheckpointWriter:
    """Writes one checkpoint. Its parts come in any order; nothing is visible before `commit`.

    Every method but `abandon` raises NotWritten when the disk refuses.
    """

    def __init__(
        self,
        folder: Path,
        *,
        round: int,  # noqa: A002 - our word
        samples: int,
        versions: Mapping[str, int],
        made_with: Mapping[str, str],
        lost: tuple[str, ...] = (),
        unmade: Mapping[str, int] | None = None,
        keep: int = KEPT,
        files: DurableFiles | None = None,
    ) -> None:
        """Begin a checkpoint in `folder`, which holds all of the run. What a crash left unfinished there is removed.

        `round`, `samples`, `versions`, `made_with`, `lost`, `unmade`: see Manifest. `keep`: how many checkpoints are
        kept, with this one. `files`: the operations on files, for tests.
        """
        self._folder = folder
        self._files = DurableFiles() if files is None else files
        # Named by process: what this one has under way, in this thread or another, is no leftover of a crash.
        under_way = (f"{_UNFINISHED}{os.getpid()}-", f"{_DISCARDED}{os.getpid()}-")
        self._unfinished = folder / f"{_UNFINISHED}{os.getpid()}-{round}"
        with told(folder):
            self._files.make_folder(folder)
            for left in [*folder.glob(f"{_UNFINISHED}*"), *folder.glob(f"{_DISCARDED}*")]:
                if left == self._unfinished or not left.name.startswith(under_way):
                    self._files.remove_folder(left)
            self._files.make_folder(self._unfinished)
        self._round, self._samples = round, samples
        self._versions, self._made_with = dict(versions), dict(made_with)
        self._lost, self._unmade = lost, dict(unmade or {})
        self._keep = keep
        self._streams: dict[str, TensorStream] = {}
        self._entries: dict[str, FileEntry] = {}

    def begin(self, name: str) -> None:
        """Begin the file `name`, whose bytes follow piece by piece. Raises ValueError for one that was begun before."""
        if name in self._streams:
            raise ValueError(f"{name} is in this checkpoint already")
        self._streams[name] = TensorStream(self._unfinished / name, self._files)

    def write(self, name: str, piece: bytes | memoryview) -> None:
        """Append a piece to a file that was begun."""
        with told(self._unfinished / name):
            self._streams[name].write(piece)

    def end(self, name: str) -> dict[str, StoredTensor]:
        """All of a file has been written. Returns which tensors it holds, by name, as far as its head tells.

        Raises InvalidInput where it is no whole safetensors file.
        """
        stream = self._streams[name]
        with told(stream.path):
            digest = stream.finish()
        held = headers(stream.path)
        self._entries[name] = FileEntry(bytes=stream.bytes, sha256=digest)
        return held

    def add_segment(self, segment: int, tensors: Mapping[str, Tensor]) -> None:
        """Write the anchor of a segment at hand, under the original names. `segment`: its number in the plan."""
        self._add(segment_file(segment), tensors)

    def add_optimizer(self, cluster: str, stage: int, state: Mapping[tuple[str, str], Tensor]) -> None:
        """Write a stage's optimizer state at hand, as `VersionedWeights.optimizer_state` gives it."""
        self._add(optimizer_file(cluster, stage), {f"{name}.{key}": value for (name, key), value in state.items()})

    def commit(self, parts: Collection[str]) -> Path:
        """Make the checkpoint the latest, remove all but the last ones, and return its folder.

        `parts`: the files without which it is not complete. RunFailed is raised, and nothing is committed, when it
        lacks any of them or a part that was begun could not be written.
        """
        lacking = sorted({*parts, *self._streams} - self._entries.keys())
        if lacking:
            lacks = ", ".join(lacking)
            raise RunFailed(f"{self._folder}: the checkpoint of round {self._round} is not complete: it lacks {lacks}")
        manifest = Manifest(
            round=self._round,
            samples=self._samples,
            versions=self._versions,
            made_with=self._made_with,
            files=self._entries,
            lost=self._lost,
            unmade=self._unmade,
        )
        with told(self._folder):
            return self._publish(encode_manifest(manifest))

    def abandon(self) -> None:
        """Remove what was written so far, as far as the disk lets it: a full one has room again."""
        with contextlib.suppress(OSError):
            self._files.remove_folder(self._unfinished)

    def _publish(self, manifest: bytes) -> Path:
        name = f"{_PREFIX}{_next_number(self._folder):06d}"
        files, final = self._files, self._folder / name
        files.write_bytes(self._unfinished / MANIFEST, manifest)
        files.sync_file(self._unfinished / MANIFEST)
        files.sync_folder(self._unfinished)
        files.move(self._unfinished, final)
        files.sync_folder(self._folder)
        _point(self._folder, name, files)
        for old in _finished(self._folder)[: -self._keep]:
            # Renamed first: a folder with a checkpoint's name is never half a checkpoint.
            discarded = self._folder / f"{_DISCARDED}{os.getpid()}-{old.name}"
            files.move(old, discarded)
            files.remove_folder(discarded)
        return final

    def _add(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        self.begin(name)
        forms = in_file_order(TensorForm.of(one, tensor) for one, tensor in tensors.items())
        self.write(name, head_of(forms))
        with told(self._unfinished / name):
            for form in forms:
                self._streams[name].write_tensor(tensors[form.name])
        self.end(name)


class Checkpoint:
    """A complete checkpoint. It is read lazily: only the tensors that are asked for are loaded."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder = folder
        self.manifest = manifest

    def weights(self, names: Collection[str] | None = None) -> StoredTensors[str]:
        """The parameters and buffers by original name: those of `names` that it holds, or all without `names`."""
        found = self._opened(SEGMENTS)
        return StoredTensors(found, {name: name for name in found.stored if names is None or name in names})

    def require(self, parts: "Parts") -> None:
        """Raises InvalidInput, naming what is missing, unless it holds all these files."""
        lacking = _lacking(self, parts)
        if lacking:
            raise _refused(self.folder, f"not complete: it lacks {', '.join(lacking)}", parts)

    def optimizer(self, cluster: str, stage: int) -> StoredTensors[tuple[str, str]]:
        """The optimizer state of a stage, which is empty for a cluster that was lost.

        Raises InvalidInput when the checkpoint knows no such stage.
        """
        name = optimizer_file(cluster, stage)
        if cluster in self.manifest.lost:
            return StoredTensors(WeightFiles(self.folder, {}), {})
        if name not in self.manifest.files:
            raise InvalidInput(f"no optimizer state of stage {stage} of {cluster!r}", path=str(self.folder))
        found = self._opened(name)
        return StoredTensors(found, {_taken_apart(joined): joined for joined in found.stored})

    def optimizer_of(self, parameters: Collection[str], *, prefer: str = "") -> StoredTensors[tuple[str, str]]:
        """The optimizer state of these parameters, whichever stages had trained them.

        All state of one parameter is of one stage: of the cluster `prefer` where it has any, else of the first cluster
        that has some. A parameter without state in the checkpoint is left out.
        """
        files = [name for name in sorted(self.manifest.files) if name.startswith(OPTIMIZERS)]
        files.sort(key=lambda name: not name.startswith(optimizer_prefix(prefer)))
        found: dict[tuple[str, str], StoredTensor] = {}
        missing = set(parameters)
        for name in files if missing else ():
            held = {_taken_apart(joined): tensor for joined, tensor in headers(self.folder / name).items()}
            found |= {place: tensor for place, tensor in held.items() if place[0] in missing}
            missing -= {parameter for parameter, _ in held}
        joined = {place: ".".join(place) for place in found}
        return StoredTensors(WeightFiles(self.folder, {joined[place]: found[place] for place in found}), joined)

    def _opened(self, beginning: str) -> WeightFiles:
        """Its files whose names begin so, together; their heads are read."""
        held: dict[str, StoredTensor] = {}
        for name in sorted(self.manifest.files):
            if name.startswith(beginning):
                held |= headers(self.folder / name)
        return WeightFiles(self.folder, held)


Parts: TypeAlias = Collection[str] | Callable[[Checkpoint], Collection[str]]
"""The files without which a checkpoint is not complete, or what tells those of each checkpoint: one that is kept may
have been made with another plan. It raises InvalidInput for a checkpoint of which it cannot tell."""


def load_latest(folder: Path, parts: Parts) -> Checkpoint:
    """The run's latest checkpoint, every file of it checked against its size and hash.

    `parts`: the files without which it is not complete. Raises InvalidInput when there is none, or when it is damaged
    or lacks a part: an older one is kept, but choosing it is up to the user, whom the message tells how.
    """
    checkpoint = open_latest(folder, parts)
    checkpoint.require(parts)
    return checkpoint


def open_latest(folder: Path, parts: Parts) -> Checkpoint:
    """Loads as `load_latest` does, for a caller who first checks whether it is of this plan, then requires `parts`."""
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
    try:
        with pointer.open("rb") as file:
            name = file.read(_LONGEST_NAME).decode("utf-8", errors="replace").strip()
    except OSError as error:
        raise InvalidInput(f"cannot be read: {error.strerror or error}", path=str(pointer)) from None
    if not _NAME.fullmatch(name):
        raise InvalidInput(f"must name a folder {_PREFIX}NUMBER beside it, not {name!r}", path=str(pointer))
    return name


def go_back(folder: Path, parts: Parts) -> tuple[str, str] | None:
    """Let `latest` name the newest complete checkpoint, where the one that it names cannot be used.

    Returns that one's name, and in words what is wrong with the other; None where nothing is, or no complete one is
    kept. Raises NotWritten when the disk refuses.
    """
    try:
        name = name_of_latest(folder)
        wrong = "named nowhere" if name is None else _fault(folder / name, parts)
    except InvalidInput as error:
        wrong = str(error)
    found = None if wrong is None else _newest_complete(folder, parts)
    if wrong is None or found is None:
        return None
    with told(folder):
        _point(folder, found.name, DurableFiles())
    return found.name, wrong


@contextlib.contextmanager
def told(path: Path) -> Iterator[None]:
    """Turn the error of a full or failing disk into a NotWritten of one line."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise NotWritten(f"{path}: cannot be written: {reason}") from error


def _finished(folder: Path) -> list[Path]:
    """Complete checkpoints, oldest first."""
    found = [path for path in folder.glob(f"{_PREFIX}*") if path.name.removeprefix(_PREFIX).isdecimal()]
    return sorted(found, key=_number)


def _point(folder: Path, name: str, files: DurableFiles) -> None:
    """Let `latest` name a checkpoint, in one step."""
    pointer = folder / f".{LATEST}.new"
    files.write_bytes(pointer, f"{name}\n".encode())
    files.sync_file(pointer)
    files.move(pointer, folder / LATEST)
    files.sync_folder(folder)


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


def _lacking(checkpoint: Checkpoint, parts: Parts) -> list[str]:
    manifest = checkpoint.manifest
    excused = tuple(optimizer_prefix(cluster) for cluster in manifest.lost)
    needed = set(parts(checkpoint) if callable(parts) else parts)
    return sorted(part for part in needed - manifest.files.keys() if not part.startswith(excused))


def _refused(latest: Path, what: str, parts: Parts) -> InvalidInput:
    """Why the latest checkpoint cannot be used, and which one can."""
    other = _newest_complete(latest.parent, parts)
    advice = "no other complete one is kept"
    if other is not None:
        advice = f"to resume from {other.name}, write that name into {latest.parent / LATEST}"
    return InvalidInput(f"the latest checkpoint is {what}; {advice}", path=str(latest))


def _newest_complete(folder: Path, parts: Parts) -> Path | None:
    return next((each for each in reversed(_finished(folder)) if _fault(each, parts) is None), None)


def _fault(folder: Path, parts: Parts) -> str | None:
    """In words, why a checkpoint cannot be used; None where it can."""
    try:
        lacking = _lacking(Checkpoint(folder, _checked(folder)), parts)
    except (ValueError, OSError, InvalidInput) as error:
        return f"damaged: {(error.strerror if isinstance(error, OSError) else None) or error}"
    return f"not complete: it lacks {', '.join(lacking)}" if lacking else None


def _check(path: Path, entry: FileEntry) -> None:
    if not path.is_file():
        raise ValueError(f"{path.name} is missing")
    if path.stat().st_size != entry.bytes:
        raise ValueError(f"{path.name} has {path.stat().st_size} bytes, not {entry.bytes}")
    if sha256_of(path) != entry.sha256:
        raise ValueError(f"the contents of {path.name} have changed")


def _taken_apart(joined: str) -> tuple[str, str]:
    """The parameter and the optimizer's key of a piece of optimizer state, which files name PARAMETER.KEY."""
    parameter, _, key = joined.rpartition(".")
    return parameter, key
