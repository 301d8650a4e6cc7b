"""Weights in safetensors files: one file, a Hugging Face folder, a run's folder, a checkpoint.

In: a path. Out: the headers of the files that belong together, read at once, and tensors, read one by one, so that a
tensor that nobody asks for is never read.
"""

import json
import os
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self, TypeVar

from safetensors import SafetensorError, safe_open
from safetensors.torch import load
from torch import Tensor

from ravnest.checkpoints.manifest import SEGMENTS
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


@dataclass(frozen=True)
class StoredTensor:
    """What a header says of a tensor. `dtype` is safetensors' name: F32, BF16, I64."""

    file: Path
    shape: tuple[int, ...]
    dtype: str


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
            with _told(file):
                self._held[file] = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
                weakref.finalize(self, os.close, self._held[file])
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
    with _told(file), safe_open(file, framework="pt") as held:
        found = {}
        for name in held.keys():  # noqa: SIM118 - it is no dict
            part = held.get_slice(name)
            found[name] = StoredTensor(file, tuple(part.get_shape()), part.get_dtype())
        return found


def _indexed(index: Path) -> dict[str, StoredTensor]:
    """The tensors that the index of a checkpoint in several files lists."""
    with _told(index):
        try:
            listed = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
            files = {name: str(file) for name, file in listed.items()}
        except (ValueError, KeyError, TypeError, AttributeError):
            raise InvalidInput("must hold `weight_map`, tensor names with their files", path=str(index)) from None
    for name, file in files.items():
        if Path(file).name != file or not (index.parent / file).is_file():
            raise InvalidInput(f"names {file!r}, which is no file beside it", path=str(index), key=name)
    held = {file: headers(index.parent / file) for file in sorted(set(files.values()))}
    for name, file in files.items():
        if name not in held[file]:
            raise InvalidInput(f"should be in {file}, and is not", path=str(index), key=name)
    return {name: held[file][name] for name, file in files.items()}


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
