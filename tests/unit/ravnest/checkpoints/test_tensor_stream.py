import errno
import hashlib

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open

from ravnest.checkpoints.durable_files import DurableFiles
from ravnest.checkpoints.tensor_stream import (
    DTYPE_NAMES,
    TensorForm,
    TensorStream,
    bytes_of,
    head_of,
    in_file_order,
)
from ravnest.errors import RunFailed

TENSORS = {
    "flag": torch.tensor([True, False, True]),
    "odd": torch.arange(3, dtype=torch.int8),
    "wide": torch.arange(5, dtype=torch.float64),
    "half": torch.ones(3, dtype=torch.bfloat16),
    "none": torch.empty(0, 2),
    "scalar": torch.tensor(7),
    "turned": torch.arange(12.0).view(3, 4).T,
}


class SmallPieces(DurableFiles):
    """Notes the size of the largest piece that is written."""

    largest = 0

    def write_bytes(self, path, data):
        self.largest = max(self.largest, len(data))
        super().write_bytes(path, data)

    def append_bytes(self, path, data):
        self.largest = max(self.largest, len(data))
        super().append_bytes(path, data)


def test_the_library_reads_what_was_written_piece_by_piece(tmp_path):
    path = tmp_path / "t.safetensors"
    stream = TensorStream(path, DurableFiles())
    forms = in_file_order(TensorForm.of(name, tensor) for name, tensor in TENSORS.items())
    stream.write(head_of(forms))
    for form in forms:
        stream.write_tensor(TENSORS[form.name])
    digest = stream.finish()
    assert digest == hashlib.sha256(path.read_bytes()).hexdigest()
    assert stream.bytes == path.stat().st_size
    with safe_open(path, framework="pt") as file:
        assert sorted(file.keys()) == sorted(TENSORS)
        for name, tensor in TENSORS.items():
            assert file.get_tensor(name).dtype == tensor.dtype
            assert torch.equal(file.get_tensor(name), tensor)
        assert file.metadata() == {"format": "pt"}


def test_a_large_tensor_is_written_in_pieces_of_bounded_size(tmp_path):
    files, tensor = SmallPieces(), torch.arange(600_000.0)
    stream = TensorStream(tmp_path / "t.safetensors", files)
    stream.write(head_of([TensorForm.of("x", tensor)]))
    stream.write_tensor(tensor)
    assert files.largest == 1 << 20
    with safe_open(tmp_path / "t.safetensors", framework="pt") as file:
        assert torch.equal(file.get_tensor("x"), tensor)


@given(st.lists(st.sampled_from(sorted(DTYPE_NAMES, key=str)), max_size=8))
def test_every_tensor_lies_at_a_multiple_of_the_size_of_its_numbers(dtypes):
    forms = in_file_order(TensorForm(f"t{number}", dtype, (3,)) for number, dtype in enumerate(dtypes))
    at = len(head_of(forms))
    for form in forms:
        assert at % form.dtype.itemsize == 0
        at += form.nbytes


@pytest.mark.parametrize("most", [1, 8, 9, 1000])
def test_a_tensor_s_bytes_are_converted_piece_by_piece(most):
    tensor = torch.arange(20.0)
    pieces = list(bytes_of(tensor, most, torch.float64))
    assert torch.equal(torch.cat(pieces).view(torch.float64), tensor.double())
    assert all(piece.numel() <= max(8, most) for piece in pieces)


def test_what_a_file_cannot_hold_is_refused_by_name():
    with pytest.raises(RunFailed, match=r"spectrum is torch\.complex64, which a safetensors file cannot hold"):
        head_of([TensorForm("spectrum", torch.complex64, (2,))])


class FullOnce(DurableFiles):
    """The disk refuses the second piece, and has room again afterwards."""

    refuses = True

    def append_bytes(self, path, data):
        if self.refuses:
            self.refuses = False
            raise OSError(errno.ENOSPC, "No space left on device")
        super().append_bytes(path, data)


def test_a_file_that_lacks_a_piece_is_never_finished(tmp_path):
    stream = TensorStream(tmp_path / "t.safetensors", FullOnce())
    stream.write(b"one")
    for step in (lambda: stream.write(b"two"), lambda: stream.write(b"three"), stream.finish):
        with pytest.raises(OSError, match="No space left"):
            step()
