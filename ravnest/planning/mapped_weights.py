"""Large weights in a temporary file, so that a model takes little more memory than one of its operations.

In: tensors, one at a time. Out: tensors of the same values that lie in a mapped file. The file has no name, so that it
is gone with the process, however that ends; other processes open it under /proc while it is there. While `sparing` is
entered, what an operation has read of them is given back to the kernel as soon as the operation is done, in backwards
too: it stays in the page cache, and is no memory of this process.
"""

import mmap
import os
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ravnest.errors import InvalidInput
from ravnest.splitting.model_source import weights_of

MAPPED_BYTES = 1 << 30
"""The bytes of a model's weights from which on large ones lie in files."""
LARGE_BYTES = 16 << 20
"""Weights from this size on lie in files."""


class Place(NamedTuple):
    """Where the bytes of a weight begin."""

    file: str
    offset: int

    def mapped(self, size_bytes: int) -> mmap.mmap:
        """So many bytes of the file from there, shared. Raises OSError."""
        with Path(self.file).open("r+b") as file:
            return mmap.mmap(file.fileno(), size_bytes, offset=self.offset)


class MappedWeights:
    """Tensors by name, the large ones in a file, which is there for as long as this object or one of them is."""

    def __init__(self, least_bytes: int = LARGE_BYTES) -> None:
        self._least_bytes = least_bytes
        self._file = tempfile.TemporaryFile(prefix="ravnest-weights-")  # noqa: SIM115 - closed with this object
        self._end = 0
        self._maps: dict[int, mmap.mmap] = {}
        self._places: dict[str, Place] = {}

    @property
    def places(self) -> Mapping[str, Place]:
        """Where each weight is that lies in the file."""
        return MappingProxyType(self._places)

    def put(self, name: str, tensor: Tensor) -> Tensor:
        """A tensor of the same values: in the file where it is large, else the given one.

        Raises InvalidInput where the disk has no room.
        """
        if tensor.nbytes < self._least_bytes or tensor.nbytes == 0:
            return tensor
        offset = -(-self._end // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
        try:
            self._file.seek(offset)
            tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tofile(self._file)
            self._file.flush()
            mapped = mmap.mmap(self._file.fileno(), tensor.nbytes, offset=offset)
        except OSError as error:
            raise InvalidInput(
                f"the model cannot be tried: {error.strerror or error}; trying it takes a temporary folder for its"
                " weights, which TMPDIR names"
            ) from error
        self._end = offset + tensor.nbytes
        held = torch.frombuffer(mapped, dtype=tensor.dtype).view(tensor.shape)
        self._maps[held.data_ptr()] = mapped
        self._places[name] = Place(f"/proc/{os.getpid()}/fd/{self._file.fileno()}", offset)
        return held

    def sparing(self) -> TorchDispatchMode:
        """A context in which each operation gives back what it has read of the files."""
        return _GivingBack(self._maps)


def filled(model: nn.Module, value_of: Callable[[str], Tensor], files: MappedWeights | None = None) -> nn.Module:
    """The model, whose memory on the CPU is not filled yet, with these values, of which one is asked for at a time.

    With `files` one value is written while the next one is made, so that two are in memory.
    """
    parameters = dict(model.named_parameters())
    with ThreadPoolExecutor(1, "ravnest-weights") as writing:
        written: Future[None] | None = None
        for name, tensor in weights_of(model).items():
            value = value_of(name)
            if files is None or name not in parameters:
                tensor.copy_(value)
                continue
            if written is not None:
                written.result()
            written = writing.submit(_put, parameters[name], files, name, value)
            del value
        if written is not None:
            written.result()
    return model


def _put(parameter: nn.Parameter, files: MappedWeights, name: str, value: Tensor) -> None:
    parameter.data = files.put(name, value)


def weight_bytes(model: nn.Module) -> int:
    """The bytes of the model's parameters and buffers."""
    return sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))


class _GivingBack(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, maps: Mapping[int, mmap.mmap]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._maps = maps

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves((args, kwargs)):
            if isinstance(leaf, Tensor) and leaf.device.type == "cpu" and leaf.layout == torch.strided:
                mapped = self._maps.get(leaf.untyped_storage().data_ptr())
                if mapped is not None:
                    mapped.madvise(mmap.MADV_DONTNEED)
        return result
