"""Weights in safetensors files: one file, a Hugging Face folder, a run's folder, a checkpoint.

In: a path. Out: the headers of the files that belong together, read at once, and tensors, read one by one, so that a
tensor that nobody asks for is never read. Also how weights are divided over several files, as Hugging Face does: which
tensor goes where, and the index that tells.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
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
        self._open: dict[Path, Any] = {}

    def read(self, name: str) -> Tensor:
        """The tensor of that name. It lies in the mapped file, so its bytes take no memory until they are used.

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


def shards(sizes: Mapping[str, int], most_bytes: int) -> list[list[str]]:
    """The names in order, in groups of at most `most_bytes` each; a larger tensor has a group of its own."""
    groups: list[list[str]] = [[]]
    held = 0
    for name, size in sizes.items():
        if groups[-1] and held + size > most_bytes:
            groups.append([])
            held = 0
        groups[-1].append(name)
        held += size
    return groups


def shard_names(stem: str, count: int) -> list[str]:
    """The names of `count` files: `model.safetensors`, or `model-00001-of-00003.safetensors` and so on."""
    if count == 1:
        return [f"{stem}.safetensors"]
    return [f"{stem}-{number:05d}-of-{count:05d}.safetensors" for number in range(1, count + 1)]


def index_name(stem: str) -> str:
    """The name of the index of several files."""
    return f"{stem}.safetensors.index.json"


def shard_index(groups: Sequence[Sequence[str]], names: Sequence[str], total_bytes: int) -> str:
    """The text of the index that says which of the files `names` holds each tensor of `groups`."""
    places = {tensor: name for group, name in zip(groups, names, strict=True) for tensor in group}
    return json.dumps({"metadata": {"total_size": total_bytes}, "weight_map": places}, indent=2) + "\n"


def _headers(file: Path) -> dict[str, StoredTensor]:
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
