import json

import pytest
import torch
from safetensors.torch import save_file

from ravnest.checkpoints.weight_files import StoredTensor, StoredTensors, open_weights
from ravnest.errors import InvalidInput

TENSORS = {"a": torch.arange(6.0).view(2, 3), "b": torch.tensor(7), "c": torch.ones(4, dtype=torch.bfloat16)}


def sharded(folder, changes=None):
    names = sorted(TENSORS)
    files = {name: f"model-0000{number % 2 + 1}-of-00002.safetensors" for number, name in enumerate(names)}
    for file in set(files.values()):
        save_file({name: TENSORS[name] for name in names if files[name] == file}, folder / file)
    index = {"metadata": {"total_size": 1}, "weight_map": {**files, **(changes or {})}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def test_a_file_tells_shapes_and_precisions_and_gives_tensors(tmp_path):
    save_file(TENSORS, tmp_path / "mine.safetensors")
    files = open_weights(tmp_path / "mine.safetensors")
    file = tmp_path / "mine.safetensors"
    ends = file.stat().st_size
    assert files.stored == {
        "b": StoredTensor(file, (), "I64", ends - 40),
        "a": StoredTensor(file, (2, 3), "F32", ends - 32),
        "c": StoredTensor(file, (4,), "BF16", ends - 8),
    }
    assert all(torch.equal(files.read(name), tensor) for name, tensor in TENSORS.items())


def test_a_tensor_is_read_in_pieces_also_after_its_file_is_gone(tmp_path):
    save_file(TENSORS, tmp_path / "mine.safetensors")
    files = open_weights(tmp_path / "mine.safetensors")
    pieces = {name: StoredTensors(files, {name: name}).in_pieces(name) for name in TENSORS}
    (tmp_path / "mine.safetensors").unlink()
    for name, tensor in TENSORS.items():
        stored, flat = pieces[name], tensor.reshape(-1)
        assert (stored.shape, stored.dtype, stored.elements) == (tuple(tensor.shape), tensor.dtype, tensor.numel())
        for start in range(tensor.numel() + 1):
            for stop in range(start, tensor.numel() + 1):
                assert torch.equal(stored.read(start, stop), flat[start:stop])


def test_a_file_that_has_become_shorter_cannot_be_read_in_pieces(tmp_path):
    path = tmp_path / "mine.safetensors"
    save_file(TENSORS, path)
    stored = open_weights(path).in_pieces("c")
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 2)
    assert stored.read(0, 3).tolist() == [1, 1, 1]
    with pytest.raises(InvalidInput, match="cannot be read: it ends before a tensor does"):
        stored.read(0, 4)


@pytest.mark.parametrize("name", ["model.safetensors", "weights.safetensors"])
def test_a_folder_of_transformers_or_of_a_run_is_read(tmp_path, name):
    save_file(TENSORS, tmp_path / name)
    assert torch.equal(open_weights(tmp_path).read("a"), TENSORS["a"])


def test_several_files_are_joined_by_their_index(tmp_path):
    sharded(tmp_path)
    files = open_weights(tmp_path)
    assert files.stored.keys() == TENSORS.keys()
    assert all(torch.equal(files.read(name), tensor) for name, tensor in TENSORS.items())


def test_a_checkpoint_s_segments_are_joined(tmp_path):
    save_file({"a": TENSORS["a"]}, tmp_path / "segment-000.safetensors")
    save_file({"b": TENSORS["b"]}, tmp_path / "segment-001.safetensors")
    assert open_weights(tmp_path).stored.keys() == {"a", "b"}
    save_file({"b": TENSORS["b"]}, tmp_path / "segment-002.safetensors")
    with pytest.raises(InvalidInput, match=r"segment-002\.safetensors: b: is in segment-001\.safetensors, too"):
        open_weights(tmp_path)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"d": "model-00001-of-00002.safetensors"}, r"index\.json: d: should be in model-00001.*, and is not"),
        ({"a": "elsewhere.safetensors"}, r"index\.json: a: names 'elsewhere\.safetensors', which is no file beside it"),
        ({"a": "../model.safetensors"}, r"index\.json: a: names '\.\./model"),
        ({"a": "x" * 300}, r"index\.json: a: names 'xxx.*', which is no file beside it"),
    ],
)
def test_an_index_that_lies_is_refused(tmp_path, changes, said):
    sharded(tmp_path, changes)
    with pytest.raises(InvalidInput, match=said):
        open_weights(tmp_path)


@pytest.mark.parametrize("text", ["no json", "[]", '{"weight_map": 3}', "{}", "[" * 100_000], ids=range(5))
def test_an_index_of_another_form_is_refused(tmp_path, text):
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(InvalidInput, match=r"index\.json: must hold `weight_map`"):
        open_weights(tmp_path)


def test_a_broken_file_is_refused(tmp_path):
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"\x08\x00\x00\x00\x00\x00\x00\x00notjson!")
    with pytest.raises(InvalidInput, match=r"model\.safetensors: cannot be read: "):
        open_weights(tmp_path)


def test_where_nothing_is_to_be_read_it_is_said_what_was_expected(tmp_path):
    with pytest.raises(InvalidInput, match=r"nowhere: there is no such file or folder"):
        open_weights(tmp_path / "nowhere")
    with pytest.raises(InvalidInput, match=r"holds none of model\.safetensors, weights\.safetensors"):
        open_weights(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(InvalidInput, match="what is pickled is not read"):
        open_weights(tmp_path)
    with pytest.raises(InvalidInput, match=r"is no \.safetensors file"):
        open_weights(tmp_path / "pytorch_model.bin")


def test_tensors_have_keys_of_their_own_and_some_may_be_at_hand(tmp_path):
    save_file(TENSORS, tmp_path / "t.safetensors")
    made = torch.ones(1)
    held = StoredTensors(open_weights(tmp_path / "t.safetensors"), {("x", 1): "a"}, {("y", 2): made})
    assert list(held) == [("x", 1), ("y", 2)]
    assert len(held) == 2
    assert torch.equal(held["x", 1], TENSORS["a"])
    assert held["y", 2] is made


def test_a_file_is_mapped_anew_after_so_many_bytes_and_what_was_read_stays(tmp_path, monkeypatch):
    """A mapping whose pages were used counts as memory of the process as long as it is open."""
    from ravnest.checkpoints import weight_files

    opened, safe_open = [], weight_files.safe_open
    monkeypatch.setattr(weight_files, "MAPPED_BYTES", 1000)
    monkeypatch.setattr(
        weight_files, "safe_open", lambda *args, **kwargs: opened.append(1) or safe_open(*args, **kwargs)
    )
    tensors = {f"w{number}": torch.full((100,), float(number)) for number in range(10)}
    save_file(tensors, tmp_path / "t.safetensors")
    files = open_weights(tmp_path / "t.safetensors")
    opened.clear()
    read = {name: files.read(name) for name in tensors}
    assert len(opened) == 4  # three tensors of 400 bytes, and one that made it more
    assert all(torch.equal(read[name], tensors[name]) for name in tensors)


def test_a_run_s_weights_in_parts_are_read(tmp_path):
    (tmp_path / "weights").mkdir()
    sharded(tmp_path / "weights")
    assert open_weights(tmp_path).stored.keys() == TENSORS.keys()
