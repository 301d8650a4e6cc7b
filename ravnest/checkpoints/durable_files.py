"""File operations that survive a crash: what is written is on the disk before anyone is told of it.

Decides which system calls that takes, one method for each, so that a test can crash between any two. Knows no
format.
"""

import hashlib
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor


class DurableFiles:
    """The operations a checkpoint is made of."""

    def make_folder(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)

    def write_tensors(self, path: Path, tensors: Mapping[str, Tensor]) -> None:
        # safetensors wants dense tensors that share no memory: views into a flat vector are copied.
        save_file({name: _dense(tensor) for name, tensor in tensors.items()}, path, metadata={"format": "pt"})
        # It comes readable by its owner alone; like any other file, it is to be as open as the folder it is in.
        path.chmod(path.parent.stat().st_mode & 0o666)

    def write_bytes(self, path: Path, data: bytes) -> None:
        path.write_bytes(data)

    def sync_file(self, path: Path) -> None:
        self._sync(path)

    def sync_folder(self, path: Path) -> None:
        """Make the names in a folder durable, as fsync of a file does for its contents."""
        self._sync(path)

    def move(self, source: Path, target: Path) -> None:
        """Atomic; a file at `target` is replaced."""
        source.replace(target)

    def remove_folder(self, path: Path) -> None:
        shutil.rmtree(path)

    def _sync(self, path: Path) -> None:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def sha256_of(path: Path) -> str:
    """Hex digest of a file's contents, read piece by piece."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _dense(tensor: Tensor) -> Tensor:
    dense = tensor.detach().to("cpu").contiguous()
    return dense.clone() if dense.untyped_storage().nbytes() != dense.nbytes else dense
