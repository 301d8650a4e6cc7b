"""Weights in safetensors files: one file, a Hugging Face folder, a run's folder, a checkpoint.

In: a path. Out: the headers of the files that belong together, read at once, and tensors, read one by one, so that a
tensor that nobody asks for is never read; a large one may be read piece by piece.
"""

import json
import os
import struct
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load
from torch import Tensor

from ravnest.checkpoints.manifest import SEGMENTS
from ravnest.checkpoints.tensor_stream import DTYPE_NAMES
from ravnest.errors import InvalidInput

INDEX = "model.safetensors.index.json"
_INDEX_END = ".safetensors.index.json"
_WHOLE = ("model.safetensors", "weights.safetensors")
"""A Hugging Face folder's, and a run's."""
_SEGMENTS = f"{SEGMENTS}*.safetensors"
IN_PARTS = "weights"
"""The folder in a run's folder that has its weights where they are in several files."""
MAPPED_BYTES = 64_000_000
"""The bytes that are read from one mapping of a file."""
_PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt")
_DTYPES = {name: dtype for dtype, name in DTYPE_NAMES.items()}


@dataclass(frozen=True)
class StoredTensor:
    """What a header says of a tensor. `dtype` is safetensors' name: F32, BF16, I64. `at`: where in the file its bytes
    begin."""

    file: Path
    shape: tuple[int, ...]
    dtype: str
    at: int


class WeightFiles:
    """The tensors of some files, by name."""

    def __init__(self, path: Path, stored: Mapping[str, StoredTensor]) -> None:
        """`path`: what the user named. `stored`: the tensors in its files, by name."""
        self.path = path
        self.stored = stored
        self._open: tuple[Path, Any] | None = None
        self._read_bytes = 0
        self._held: dict[Path, int] = {}

    def hold(self) -> Self:
        """Open all files, so that what they hold can be read also after they were removed, and return this object.

        Raises InvalidInput where one cannot be read.
        """
        for file in dict.fromkeys(each.file for each in self.stored.values()):
            self._hold(file)
        return self

    def read(self, name: str) -> Tensor:
        """The tensor of that name. It lies in the mapped file, so its bytes take no memory until they are used.

        What was used counts as memory of this process until nobody has a tensor of the same mapping any more. So a
        file is mapped anew for every 64 MB of it. Raises InvalidInput where the file can no longer be read.
        """
        file = self.stored[name].file
        with _told(file):
            if self._open is None or self._open[0] != file or self._read_bytes > MAPPED_BYTES:
                place = f"/dev/fd/{self._held[file]}" if file in self._held else file
                self._open, self._read_bytes = (file, safe_open(place, framework="pt")), 0
            tensor: Tensor = self._open[1].get_tensor(name)
        self._read_bytes += tensor.nbytes
        return tensor

    def in_pieces(self, name: str) -> "StoredPieces | None":
        """The tensor of that name, to be read piece by piece; None for a precision that torch lacks. Its file is opened
        now, so it may be removed. Raises InvalidInput where it cannot be."""
        stored = self.stored[name]
        if stored.dtype not in _DTYPES:
            return None
        return StoredPieces(self, stored.file, self._hold(stored.file), stored.at, stored.shape, _DTYPES[stored.dtype])

    def _hold(self, file: Path) -> int:
        if file not in self._held:
            with _told(file):
                self._held[file] = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
            weakref.finalize(self, os.close, self._held[file])
        return self._held[file]


@dataclass(frozen=True)
class StoredPieces:
    """A tensor in a file, of which pieces are read as they are needed. Nothing is mapped, since mapped pages that were
    read count as memory of the process until the kernel takes them back."""

    files: WeightFiles
    """What keeps the file open."""
    file: Path
    descriptor: int
    at: int
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def elements(self) -> int:
        """The numbers that it has."""
        return prod(self.shape)

    def read(self, start: int, stop: int) -> Tensor:
        """The elements from `start` to `stop`, flat. Raises InvalidInput where the file can no longer be read."""
        size = self.dtype.itemsize
        data, done = memoryview(bytearray((stop - start) * size)), 0
        with _told(self.file):
            while done < len(data):
                count = os.preadv(self.descriptor, [data[done:]], self.at + start * size + done)
                if not count:
                    raise OSError("it ends before a tensor does")
                done += count
        return torch.frombuffer(data, dtype=self.dtype) if len(data) else torch.empty(0, dtype=self.dtype)


K = TypeVar("K")


class StoredTensors(Mapping[K, Tensor]):
    """Tensors in files, under keys of any kind. Each is read when it is asked for, and not kept."""

    def __init__(
        self, files: WeightFiles, names: Mapping[K, str], others: Mapping[K, Tensor] = MappingProxyType({})
    ) -> None:
        """`names`: the name in the files of the tensor under each key. `others`: tensors at hand, under other keys."""
        self.files = files
        self.names = names
        self._others = others

    def __getitem__(self, key: K) -> Tensor:
        return self.files.read(self.names[key]) if key in self.names else self._others[key]

    def in_pieces(self, key: K) -> StoredPieces | None:
        """The tensor under a key, to be read piece by piece; None where that cannot be."""
        return self.files.in_pieces(self.names[key]) if key in self.names else None

    def __iter__(self) -> Iterator[K]:
        yield from self.names
        yield from self._others

    def __len__(self) -> int:
        return len(self.names) + len(self._others)


def tensors_in(data: bytes) -> dict[str, Tensor]:
    """The tensors in the bytes of a safetensors file, by name. Raises InvalidInput where they are none."""
    try:
        return load(data)
    except SafetensorError as error:
        raise InvalidInput(f"these bytes are no safetensors file: {error}") from error


def open_weights(path: Path) -> WeightFiles:
    """The files that `path` names, their headers read. Raises InvalidInput where there are none, or broken ones."""
    if path.is_file():
        if path.name.endswith(_INDEX_END):
            return WeightFiles(path, _indexed(path))
        if path.suffix != ".safetensors":
            raise InvalidInput("is no .safetensors file; other formats are not read", path=str(path))
        return WeightFiles(path, headers(path))
    if not path.is_dir():
        raise InvalidInput("there is no such file or folder", path=str(path))
    for name in _WHOLE:
        if (path / name).is_file():
            return WeightFiles(path, headers(path / name))
    for index in (path / INDEX, path / IN_PARTS / INDEX):
        if index.is_file():
            return WeightFiles(path, _indexed(index))
    segments = sorted(path.glob(_SEGMENTS))
    if segments:
        return WeightFiles(path, _joined({file: headers(file) for file in segments}))
    wanted = ", ".join((*_WHOLE, INDEX))
    pickled = any(any(path.glob(pattern)) for pattern in _PICKLED)
    hint = "; what is pickled is not read: save it as safetensors" if pickled else ""
    raise InvalidInput(f"holds none of {wanted} (of a run that has finished){hint}", path=str(path))


def headers(file: Path) -> dict[str, StoredTensor]:
    """The tensors in a safetensors file, by name. Raises InvalidInput where it is none, or a broken one."""
    with _told(file), safe_open(file, framework="pt") as held, file.open("rb") as raw:
        (length,) = struct.unpack("<Q", raw.read(8))  # it was found to be one when it was opened
        entries = json.loads(raw.read(length))
        found = {}
        for name in held.keys():  # noqa: SIM118 - it is no dict
            part = held.get_slice(name)
            at = 8 + length + int(entries[name]["data_offsets"][0])
            found[name] = StoredTensor(file, tuple(part.get_shape()), part.get_dtype(), at)
        return found


def _indexed(index: Path) -> dict[str, StoredTensor]:
    """The tensors that the index of a checkpoint in several files lists."""
    with _told(index):
        try:
            listed = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
            files = {name: str(file) for name, file in listed.items()}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise InvalidInput("must hold `weight_map`, tensor names with their files", path=str(index)) from None
    for name, file in files.items():
        if Path(file).name != file or not _is_file(index.parent / file):
            raise InvalidInput(f"names {file!r}, which is no file beside it", path=str(index), key=name)
    held = {file: headers(index.parent / file) for file in sorted(set(files.values()))}
    for name, file in files.items():
        if name not in held[file]:
            raise InvalidInput(f"should be in {file}, and is not", path=str(index), key=name)
    return {name: held[file][name] for name, file in files.items()}


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        return False  # a name that is too long, for one


def _joined(held: Mapping[Path, Mapping[str, StoredTensor]]) -> dict[str, StoredTensor]:
    found: dict[str, StoredTensor] = {}
    for file, tensors in held.items():
        for name, tensor in tensors.items():
            if name in found:
                raise InvalidInput(f"is in {found[name].file.name}, too", path=str(file), key=name)
            found[name] = tensor
    return found


@contextmanager
def _told(path: Path) -> Iterator[None]:
    try:
        yield
    except (SafetensorError, OSError) as error:
        raise InvalidInput(f"cannot be read: {' '.join(str(error).split())}", path=str(path)) from error
