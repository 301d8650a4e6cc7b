"""Weights at rest in safetensors files: one file, a Hugging Face folder, a run's folder, a checkpoint.

Decides which files belong together, and reads headers at once and tensors one by one: a tensor that nobody asks for is
never read. Knows no model, and not what the names should be.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from ravnest.errors import InvalidInput

_INDEX = "model.safetensors.index.json"
_INDEX_END = ".safetensors.index.json"
_WHOLE = ("model.safetensors", "weights.safetensors")
"""A Hugging Face folder's, and a run's."""
_SEGMENTS = "segment-*.safetensors"
_PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt")


@dataclass(frozen=True)
class StoredTensor:
    """What a header says of a tensor. `dtype` in safetensors' words: F32, BF16, I64."""

    file: Path
    shape: tuple[int, ...]
    dtype: str


class WeightFiles:
    """The tensors of some files, by name."""

    def __init__(self, path: Path, stored: Mapping[str, StoredTensor]) -> None:
        """`path`: what the user named."""
        self.path = path
        self.stored = stored
        self._open: dict[Path, Any] = {}

    def read(self, name: str) -> Tensor:
        """The tensor. It lies in the mapped file, so that its bytes take no memory of this process until they are used.

        Raises InvalidInput where the file can no longer be read.
        """
        file = self.stored[name].file
        with _told(file):
            if file not in self._open:
                self._open[file] = safe_open(file, framework="pt")
            tensor: Tensor = self._open[file].get_tensor(name)
        return tensor


def open_weights(path: Path) -> WeightFiles:
    """The files that `path` names, their headers read. Raises InvalidInput where there are none, or broken ones."""
    if path.is_file():
        if path.name.endswith(_INDEX_END):
            return WeightFiles(path, _indexed(path))
        if path.suffix != ".safetensors":
            raise InvalidInput("is no .safetensors file; other formats are not read", path=str(path))
        return WeightFiles(path, _headers(path))
    if not path.is_dir():
        raise InvalidInput("there is no such file or folder", path=str(path))
    for name in _WHOLE:
        if (path / name).is_file():
            return WeightFiles(path, _headers(path / name))
    if (path / _INDEX).is_file():
        return WeightFiles(path, _indexed(path / _INDEX))
    segments = sorted(path.glob(_SEGMENTS))
    if segments:
        return WeightFiles(path, _joined({file: _headers(file) for file in segments}))
    wanted = ", ".join((*_WHOLE, _INDEX))
    pickled = any(any(path.glob(pattern)) for pattern in _PICKLED)
    hint = "; what is pickled is not read: save it as safetensors" if pickled else ""
    raise InvalidInput(f"holds none of {wanted} (of a run that has finished){hint}", path=str(path))


def _headers(file: Path) -> dict[str, StoredTensor]:
    with _told(file), safe_open(file, framework="pt") as held:
        found = {}
        for name in held.keys():  # noqa: SIM118 - it is no dict
            part = held.get_slice(name)
            found[name] = StoredTensor(file, tuple(part.get_shape()), part.get_dtype())
        return found


def _indexed(index: Path) -> dict[str, StoredTensor]:
    """Of a checkpoint in several files, what its index lists."""
    with _told(index):
        try:
            listed = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
            files = {name: str(file) for name, file in listed.items()}
        except (ValueError, KeyError, TypeError, AttributeError):
            raise InvalidInput("must hold `weight_map`, tensor names with their files", path=str(index)) from None
    for name, file in files.items():
        if Path(file).name != file or not (index.parent / file).is_file():
            raise InvalidInput(f"names {file!r}, which is no file beside it", path=str(index), key=name)
    headers = {file: _headers(index.parent / file) for file in sorted(set(files.values()))}
    for name, file in files.items():
        if name not in headers[file]:
            raise InvalidInput(f"should be in {file}, and is not", path=str(index), key=name)
    return {name: headers[file][name] for name, file in files.items()}


def _joined(headers: Mapping[Path, Mapping[str, StoredTensor]]) -> dict[str, StoredTensor]:
    found: dict[str, StoredTensor] = {}
    for file, tensors in headers.items():
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
