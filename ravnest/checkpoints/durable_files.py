"""File operations of a checkpoint that survive a crash: what is written is on the disk before it is announced.

In: paths, bytes and tensors. Out: files. There is one method for each operation, so that a test can crash between any
two of them.
"""

import hashlib
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor


class DurableFiles:
    """The operations on files and folders that make a checkpoint. They raise OSError or SafetensorError."""

    def make_folder(self, path: Path) -> None:
        """Make a folder and its parents, where they do not exist."""
        path.mkdir(parents=True, exist_ok=True)

    def write_tensors(self, path: Path, tensors: Mapping[str, Tensor]) -> None:
        """Write a safetensors file."""
        # safetensors wants dense tensors that share no memory: views into a flat vector are copied.
        save_file({name: _dense(tensor) for name, tensor in tensors.items()}, path, metadata={"format": "pt"})
        # It is made readable by its owner alone; like any other file, it has to be as open as its folder.
        path.chmod(path.parent.stat().st_mode & 0o666)

    def write_bytes(self, path: Path, data: bytes | memoryview) -> None:
        """Write a file."""
        path.write_bytes(data)

    def append_bytes(self, path: Path, data: bytes | memoryview) -> None:
        """Write to the end of a file."""
        with path.open("ab", buffering=0) as file:
            left = memoryview(data).cast("B")
            while left:
                left = left[file.write(left) :]

    def sync_file(self, path: Path) -> None:
        """Wait until the contents of a file are on the disk."""
        self._sync(path)

    def sync_folder(self, path: Path) -> None:
        """Wait until the names in a folder are on the disk."""
        self._sync(path)

    def move(self, source: Path, target: Path) -> None:
        """Rename atomically; a file at `target` is replaced."""
        source.replace(target)

    def remove_file(self, path: Path) -> None:
        """Remove a file, where it is there."""
        path.unlink(missing_ok=True)

    def remove_folder(self, path: Path) -> None:
        """Remove a folder and all that is in it."""
        shutil.rmtree(path)

    def _sync(self, path: Path) -> None:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file's contents, as hexadecimal digits; the file is read piece by piece."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _dense(tensor: Tensor) -> Tensor:
    dense = tensor.detach().to("cpu").contiguous()
    return dense.clone() if dense.untyped_storage().nbytes() != dense.nbytes else dense
