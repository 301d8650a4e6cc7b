"""A safetensors file as a stream of bytes: it is written and hashed piece by piece, so nobody has to hold it.

    8 bytes: N, little endian | N bytes: JSON, name → dtype, shape, place | the tensors' bytes, without gaps

In: the names, dtypes and shapes of the tensors, then their bytes in the order of the file. Out: the file, with its size
and SHA-256. Wider dtypes come first, as in the files that the safetensors library writes: each tensor then lies at a
multiple of the size of its numbers, without which torch cannot map it.
"""

import hashlib
import json
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from ravnest.checkpoints.durable_files import DurableFiles
from ravnest.errors import RunFailed

PIECE_BYTES: Final = 1 << 20
"""The most bytes of a piece."""

DTYPE_NAMES: Final[Mapping[torch.dtype, str]] = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""The names of dtypes in safetensors files."""


@dataclass(frozen=True)
class TensorForm:
    """What a file says of a tensor before its bytes come."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]

    @classmethod
    def of(cls, name: str, tensor: Tensor) -> "TensorForm":
        """The form of a tensor at hand."""
        return cls(name, tensor.dtype, tuple(tensor.shape))

    @property
    def nbytes(self) -> int:
        """The bytes of the tensor in the file."""
        return prod(self.shape) * self.dtype.itemsize


def in_file_order(forms: Iterable[TensorForm]) -> list[TensorForm]:
    """The forms in the order of their bytes in a file: by falling size of a number, else as they come."""
    return sorted(forms, key=lambda form: -form.dtype.itemsize)


def head_of(forms: Sequence[TensorForm]) -> bytes:
    """The beginning of a file, up to the first tensor's bytes. `forms` are in the file's order.

    Raises RunFailed for a dtype that safetensors files cannot hold.
    """
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    at = 0
    for form in forms:
        if form.dtype not in DTYPE_NAMES:
            raise RunFailed(f"{form.name} is {form.dtype}, which a safetensors file cannot hold")
        entries[form.name] = {
            "dtype": DTYPE_NAMES[form.dtype],
            "shape": form.shape,
            "data_offsets": (at, at + form.nbytes),
        }
        at += form.nbytes
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def bytes_of(tensor: Tensor, most_bytes: int = PIECE_BYTES, dtype: torch.dtype | None = None) -> Iterator[Tensor]:
    """The tensor's bytes in its order of elements, as uint8 vectors in host memory of at most `most_bytes` each.

    They may be views of the tensor. With `dtype`, which must be no wider than `most_bytes`, its numbers are converted,
    one piece at a time.
    """
    kind = tensor.dtype if dtype is None else dtype
    flat = tensor.detach().reshape(-1)
    step = max(1, most_bytes // kind.itemsize)
    for start in range(0, flat.numel(), step):
        yield flat[start : start + step].to("cpu", kind).view(torch.uint8)


class TensorStream:
    """Writes one file from pieces that come in order. Every method raises OSError where the disk refuses."""

    def __init__(self, path: Path, files: DurableFiles) -> None:
        """`files`: the operations on files. Nothing is written before the first piece."""
        self.path = path
        self._files = files
        self._hash = hashlib.sha256()
        self._failed: OSError | None = None
        self.bytes = 0
        """The bytes that were written so far."""

    def write(self, piece: bytes | memoryview) -> None:
        """Append a piece. Once the disk has refused one, the file stays refused."""
        if self._failed is not None:
            raise self._failed
        try:
            if self.bytes:
                self._files.append_bytes(self.path, piece)
            else:
                self._files.write_bytes(self.path, piece)
        except OSError as error:
            self._failed = error
            raise
        self._hash.update(piece)
        self.bytes += memoryview(piece).nbytes

    def write_tensor(self, tensor: Tensor, dtype: torch.dtype | None = None) -> None:
        """Append the bytes of a tensor, converted to `dtype` where it is given."""
        for piece in bytes_of(tensor, dtype=dtype):
            self.write(piece.numpy().data)

    def finish(self) -> str:
        """Wait until the file is on the disk. Returns its SHA-256 as hexadecimal digits."""
        if self._failed is not None:
            raise self._failed
        self._files.sync_file(self.path)
        return self._hash.hexdigest()
