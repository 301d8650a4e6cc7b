"""Tensors that a machine has in files of its own are taken from there if their bytes are the wanted ones."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from ravnest.checkpoints.own_copies import StoredCopy, copies_here, digest_of

TENSORS = {"w": torch.arange(6.0).view(2, 3), "b": torch.ones(3, dtype=torch.bfloat16), "n": torch.tensor(7)}


@pytest.fixture
def wanted(tmp_path):
    file = tmp_path / "model.safetensors"
    save_file(TENSORS, file)
    return {f"my.{name}": StoredCopy(str(file), name, digest_of(tensor)) for name, tensor in TENSORS.items()}


def test_a_machine_with_the_same_files_has_all(wanted):
    found = copies_here(wanted)
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[f"my.{name}"], tensor) for name, tensor in TENSORS.items())
    assert found["my.b"].dtype == torch.bfloat16


def test_of_a_file_with_other_bytes_only_the_same_tensors_are_taken(wanted):
    file = wanted["my.w"].file
    save_file({**TENSORS, "w": TENSORS["w"] + 1}, file)
    assert copies_here(wanted).keys() == {"my.b", "my.n"}
    save_file({"w": TENSORS["w"].view(3, 2), "b": TENSORS["b"].float()}, file)
    assert copies_here(wanted) == {}


@pytest.mark.parametrize("contents", [None, b"", b"\x08\0\0\0\0\0\0\0{}broken", b"x" * 1000])
def test_a_machine_without_the_file_or_with_a_broken_one_has_none(wanted, contents):
    path = wanted["my.w"].file
    if contents is None:
        wanted = {name: StoredCopy(path + ".gone", one.name, one.sha256) for name, one in wanted.items()}
    else:
        Path(path).write_bytes(contents)
    assert copies_here(wanted) == {}


def test_a_folder_is_no_file(wanted, tmp_path):
    assert copies_here({"a": StoredCopy(str(tmp_path), "w", wanted["my.w"].sha256)}) == {}


def test_digests_tell_types_and_shapes_apart():
    same_bytes = [
        torch.zeros(4),
        torch.zeros(2, 2),
        torch.zeros(4, dtype=torch.int32),
        torch.zeros(0),
        torch.zeros(0, 2),
    ]
    assert len({digest_of(tensor) for tensor in same_bytes}) == 5
    assert digest_of(torch.arange(6.0).view(2, 3).T) == digest_of(torch.arange(6.0).view(2, 3).T.contiguous())
