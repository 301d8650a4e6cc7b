"""File operations of a checkpoint that survive a crash: what is written is on the disk before it is announced.

In: paths, bytes and tensors. Out: files. There is one method for each operation, so that a test can crash between any
two of them. Large pieces go to the disk itself, without the kernel's cache of files: that takes a tenth of the
processor's time, and spares the memory of what is read again only after a crash.
"""

import errno
import hashlib
import mmap
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from safetensors.torch import save_file
from torch import Tensor

BLOCK_BYTES: Final = 4096
"""What is written without the kernel's cache begins in the file at a multiple of it, and is a multiple of it."""
_AT_ONCE_BYTES = 1 << 20
_O_DIRECT: int = getattr(os, "O_DIRECT", 0)  # 0 where the system has no such thing


class DurableFiles:
    """The operations on files and folders that make a checkpoint. They raise OSError or SafetensorError.

    One thread at a time uses an object.
    """

    _direct = _O_DIRECT != 0
    """Whether the file system has not refused yet to go without the kernel's cache."""
    _buffer: mmap.mmap | None = None
    """Memory that begins where a page does, as the disk wants it."""

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
        self._write(path, data, os.O_CREAT | os.O_TRUNC)

    def append_bytes(self, path: Path, data: bytes | memoryview) -> None:
        """Write to the end of a file."""
        self._write(path, data, os.O_CREAT | os.O_APPEND)

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

    def _write(self, path: Path, data: bytes | memoryview, flags: int) -> None:
        left = memoryview(data).cast("B")
        if self._direct and left and left.nbytes % BLOCK_BYTES == 0:
            left = self._written_directly(path, left, flags)
            if not left:
                return
            if left.nbytes < memoryview(data).nbytes:
                flags = os.O_APPEND
        handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC | flags, 0o666)
        try:
            while left:
                left = left[os.write(handle, left) :]
        finally:
            os.close(handle)

    def _written_directly(self, path: Path, left: memoryview, flags: int) -> memoryview:
        """Write as much as can be without the kernel's cache. Returns what is left."""
        if self._buffer is None:
            self._buffer = mmap.mmap(-1, _AT_ONCE_BYTES)
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC | _O_DIRECT | flags, 0o666)
            try:
                while left and os.fstat(handle).st_size % BLOCK_BYTES == 0:
                    count = min(left.nbytes, _AT_ONCE_BYTES)
                    self._buffer[:count] = left[:count]
                    left = left[os.write(handle, memoryview(self._buffer)[:count]) :]
            finally:
                os.close(handle)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
                raise
            self._direct = False
        return left

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
