import hashlib

import torch
from safetensors import safe_open

from ravnest.checkpoints.durable_files import DurableFiles, sha256_of


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
