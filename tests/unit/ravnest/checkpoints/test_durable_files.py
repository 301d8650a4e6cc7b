"""Files hold the bytes that were written, whether these go around the kernel's cache or not."""

import errno
import hashlib
import os

import pytest
import torch
from safetensors import safe_open

from ravnest.checkpoints import durable_files
from ravnest.checkpoints.durable_files import BLOCK_BYTES, DurableFiles, sha256_of


def test_views_of_one_vector_are_written_as_tensors_of_their_own(tmp_path):
    path = tmp_path / "t.safetensors"
    flat = torch.arange(12.0)
    tensors = {
        "a": flat[:6].view(2, 3),
        "b": flat[3:],
        "transposed": flat.view(3, 4).T,
        "scalar": torch.tensor(3),
        "empty": torch.empty(0, 2),
        "parameter": torch.nn.Parameter(torch.ones(2, dtype=torch.bfloat16)),
    }
    DurableFiles().write_tensors(path, tensors)
    with safe_open(path, framework="pt") as file:
        assert sorted(file.keys()) == sorted(tensors)
        assert all(torch.equal(file.get_tensor(name), tensor) for name, tensor in tensors.items())
    assert path.stat().st_size < 1000


def test_nothing_to_write_is_a_file_too(tmp_path):
    path = tmp_path / "t.safetensors"
    DurableFiles().write_tensors(path, {})
    with safe_open(path, framework="pt") as file:
        assert list(file.keys()) == []


def test_moving_replaces(tmp_path):
    files, old, new = DurableFiles(), tmp_path / "old", tmp_path / "new"
    files.write_bytes(old, b"old")
    files.write_bytes(new, b"new")
    files.sync_file(new)
    files.move(new, old)
    files.sync_folder(tmp_path)
    assert old.read_bytes() == b"new"
    assert not new.exists()


def test_sha256(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"x" * 100_000)
    assert sha256_of(path) == hashlib.sha256(b"x" * 100_000).hexdigest()


PIECES = (2 * BLOCK_BYTES, BLOCK_BYTES, 100, BLOCK_BYTES, 3 << 20, 0, 7)


def written(path, files, sizes=PIECES):
    """Write pieces of these sizes. Returns what the file should hold."""
    data = os.urandom(sum(sizes))
    files.write_bytes(path, data[: sizes[0]])
    at = sizes[0]
    for size in sizes[1:]:
        files.append_bytes(path, memoryview(data)[at : at + size])
        at += size
    return data


@pytest.mark.parametrize("sizes", [PIECES, (3 << 20, BLOCK_BYTES), (0, BLOCK_BYTES), (1, 1), (BLOCK_BYTES, 1)])
def test_pieces_of_any_size_follow_each_other(tmp_path, sizes):
    path, files = tmp_path / "file", DurableFiles()
    path.write_bytes(b"what was there before" * 1000)
    assert path.read_bytes() != written(path, files, sizes)
    path.unlink()
    assert written(path, files, sizes) == path.read_bytes()
    assert written(path, files, sizes) == path.read_bytes()  # in place of what is there now
    assert path.stat().st_mode & 0o777 == 0o666 & ~current_umask()


def current_umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


def opened(monkeypatch, refuse=None):
    """The flags with which files are opened. `refuse`: the error of those that go around the cache."""
    flags, system = [], os.open

    def recorded(path, how, *mode):
        flags.append(how)
        if refuse is not None and how & os.O_DIRECT:
            raise OSError(refuse, "refused")
        return system(path, how, *mode)

    monkeypatch.setattr(durable_files.os, "open", recorded)
    return flags


@pytest.mark.skipif(not hasattr(os, "O_DIRECT"), reason="the system has no files without a cache")
def test_only_whole_blocks_behind_whole_blocks_go_around_the_cache(tmp_path, monkeypatch):
    flags, files, path = opened(monkeypatch), DurableFiles(), tmp_path / "file"
    files.write_bytes(path, bytes(BLOCK_BYTES))
    files.append_bytes(path, bytes(BLOCK_BYTES))
    assert all(how & os.O_DIRECT for how in flags)
    files.append_bytes(path, bytes(100))
    assert not flags[-1] & os.O_DIRECT
    files.append_bytes(path, bytes(BLOCK_BYTES))  # it begins within a block
    assert not flags[-1] & os.O_DIRECT
    assert path.stat().st_size == 3 * BLOCK_BYTES + 100


@pytest.mark.skipif(not hasattr(os, "O_DIRECT"), reason="the system has no files without a cache")
def test_a_file_system_that_has_none_is_asked_once(tmp_path, monkeypatch):
    flags, files, path = opened(monkeypatch, refuse=errno.EINVAL), DurableFiles(), tmp_path / "file"
    assert written(path, files) == path.read_bytes()
    assert sum(bool(how & os.O_DIRECT) for how in flags) == 1


@pytest.mark.skipif(not hasattr(os, "O_DIRECT"), reason="the system has no files without a cache")
def test_a_full_disk_is_told(tmp_path, monkeypatch):
    opened(monkeypatch, refuse=errno.ENOSPC)
    with pytest.raises(OSError, match="refused"):
        written(tmp_path / "file", DurableFiles())


@pytest.mark.parametrize("size", [1, BLOCK_BYTES])
def test_a_file_begins_with_what_is_appended_first(tmp_path, size):
    files = DurableFiles()
    for _ in range(2):
        files.append_bytes(tmp_path / "curve.jsonl", bytes(size))
    assert (tmp_path / "curve.jsonl").stat().st_size == 2 * size
