"""Tensors in files of which another machine may have a copy, known by the SHA-256 of their bytes.

In: where the driver reads a tensor, and its digest. Out, on another machine: those tensors whose file is there under
the same path and whose bytes are the same. A copy of the files spares sending them; a machine without them, or with
others under that path, has none of these tensors, which is no error.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ravnest.checkpoints.weight_files import WeightFiles, headers
from ravnest.errors import InvalidInput


@dataclass(frozen=True)
class StoredCopy:
    """A tensor in a safetensors file."""

    file: str
    """The path, the same on every machine that has a copy."""
    name: str
    """The tensor's name in the file."""
    sha256: str
    """`digest_of` it."""


def digest_of(tensor: Tensor) -> str:
    """The SHA-256 of a tensor's type, shape and bytes, as hexadecimal digits."""
    found = hashlib.sha256(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
    if tensor.numel():
        found.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def copies_here(wanted: Mapping[str, StoredCopy]) -> dict[str, Tensor]:
    """Those of the `wanted` tensors that this machine has, under the keys of `wanted`. They lie in the mapped files."""
    files: dict[str, WeightFiles | None] = {}
    found = {}
    for key, copy in wanted.items():
        if copy.file not in files:
            files[copy.file] = _opened(Path(copy.file))
        held = files[copy.file]
        if held is None or copy.name not in held.stored:
            continue
        try:
            tensor = held.read(copy.name)
        except InvalidInput:
            continue
        if digest_of(tensor) == copy.sha256:
            found[key] = tensor
    return found


def _opened(path: Path) -> WeightFiles | None:
    try:
        return WeightFiles(path, headers(path)) if path.is_file() else None
    except (InvalidInput, OSError):
        return None
