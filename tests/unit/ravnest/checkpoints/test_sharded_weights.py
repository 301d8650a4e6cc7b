import errno
import json
import shutil

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ravnest.checkpoints.durable_files import DurableFiles
from ravnest.checkpoints.sharded_weights import ShardedWeights, index_name, shard_index, shard_names, shards
from ravnest.checkpoints.tensor_stream import TensorForm
from ravnest.checkpoints.weight_files import open_weights
from ravnest.errors import InvalidInput, NotWritten


@given(st.lists(st.integers(0, 30), min_size=1, max_size=20), st.integers(0, 40))
def test_every_tensor_has_one_place_in_order_and_parts_are_no_larger_than_asked(sizes: list[int], most: int) -> None:
    named = {f"w{number}": size for number, size in enumerate(sizes)}
    groups = shards(named, most)
    assert [name for group in groups for name in group] == list(named)
    assert all(len(group) == 1 or sum(named[name] for name in group) <= most for group in groups)
    assert all(groups)


def test_nothing_to_save_is_one_part() -> None:
    assert shards({}, 10) == [[]]


def test_files_are_called_as_hugging_face_calls_them() -> None:
    assert shard_names("model", 1) == ["model.safetensors"]
    assert shard_names("model", 2) == ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    assert index_name("model") == "model.safetensors.index.json"


def test_the_index_says_where_each_tensor_is() -> None:
    read = json.loads(shard_index([["a", "b"], ["c"]], ["x", "y"], 12))
    assert read == {"metadata": {"total_size": 12}, "weight_map": {"a": "x", "b": "x", "c": "y"}}


TENSORS = {f"w{number}": torch.full((100,), float(number)) for number in range(4)}
FORMS = {name: TensorForm.of(name, tensor) for name, tensor in TENSORS.items()}
TWO = 2 * 400
"""The bytes of a file that holds two of them."""


def write(folder, part_bytes=TWO, factor=1.0, files=None):
    place = ShardedWeights(folder, "model", part_bytes, files or DurableFiles())
    return place.write(FORMS, lambda name: TENSORS[name] * factor)


def held(folder):
    files = open_weights(folder)
    return {name: float(files.read(name)[0]) for name in sorted(files.stored)}


def test_what_is_written_in_parts_is_read_by_the_index(tmp_path):
    first, second, index = write(tmp_path)
    assert [path.name for path in (first, second)] == shard_names("model", 2)
    assert json.loads(index.read_text())["metadata"]["total_size"] == 1600
    assert held(tmp_path) == {"w0": 0.0, "w1": 1.0, "w2": 2.0, "w3": 3.0}
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(path.name for path in (first, second, index))


def test_one_tensor_at_a_time_is_asked_for(tmp_path):
    asked = []
    ShardedWeights(tmp_path, "model", TWO).write(FORMS, lambda name: asked.append(name) or TENSORS[name])
    assert asked == list(TENSORS)


def test_fewer_parts_leave_nothing_of_more(tmp_path):
    write(tmp_path)
    assert [path.name for path in write(tmp_path, 10_000, factor=2.0)] == ["model.safetensors"]
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]
    assert held(tmp_path) == {"w0": 0.0, "w1": 2.0, "w2": 4.0, "w3": 6.0}
    write(tmp_path)
    assert not (tmp_path / "model.safetensors").exists()


class Crash(BaseException):
    """The process is gone."""


class Crashing(DurableFiles):
    """Does so many operations and no more."""

    def __init__(self, left=10**9):
        self.left = left
        self.done = 0

    def _do(self, name, *arguments):
        if self.done == self.left:
            raise Crash
        self.done += 1
        getattr(DurableFiles, name)(self, *arguments)


for _name in ("make_folder", "write_bytes", "append_bytes", "sync_file", "sync_folder", "move", "remove_file"):
    setattr(Crashing, _name, lambda self, *arguments, _name=_name: self._do(_name, *arguments))


@pytest.mark.parametrize(("before", "after"), [(TWO, TWO), (10_000, 10_000), (TWO, 10_000), (10_000, TWO)])
def test_a_crash_at_any_moment_leaves_whole_weights_or_none_that_are_found(tmp_path, before, after):
    counting, old = Crashing(), tmp_path / "old"
    write(old, before)
    write(shutil.copytree(old, tmp_path / "counting"), after, 2.0, counting)
    whole = ({"w0": 0.0, "w1": 1.0, "w2": 2.0, "w3": 3.0}, {"w0": 0.0, "w1": 2.0, "w2": 4.0, "w3": 6.0})
    seen = set()
    for operations in range(counting.done):
        folder = shutil.copytree(old, tmp_path / str(operations))
        with pytest.raises(Crash):
            write(folder, after, 2.0, Crashing(operations))
        try:
            found = held(folder)
        except InvalidInput:
            continue
        assert found in whole
        seen.add(whole.index(found))
        write(folder, after, 2.0)
        assert held(folder) == whole[1]
    assert 0 in seen


class Full(DurableFiles):
    def append_bytes(self, path, data):
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_leaves_what_was_there_and_names_the_file(tmp_path):
    before = write(tmp_path)
    with pytest.raises(NotWritten, match=r"model-00001-of-00002\.safetensors: cannot be written: No space left"):
        write(tmp_path, factor=2.0, files=Full())
    assert held(tmp_path) == {"w0": 0.0, "w1": 1.0, "w2": 2.0, "w3": 3.0}
    assert sorted(tmp_path.iterdir()) == sorted(before)


def test_an_interrupt_leaves_what_was_there_and_nothing_beside_it(tmp_path):
    before = write(tmp_path)

    def read(name):
        if name == "w3":
            raise KeyboardInterrupt
        return TENSORS[name] * 2.0

    with pytest.raises(KeyboardInterrupt):
        ShardedWeights(tmp_path, "model", TWO, DurableFiles()).write(FORMS, read)
    assert held(tmp_path) == {"w0": 0.0, "w1": 1.0, "w2": 2.0, "w3": 3.0}
    assert sorted(tmp_path.iterdir()) == sorted(before)


def test_removing_takes_the_folder_only_where_nothing_else_is_in_it(tmp_path):
    for other in (False, True):
        folder = tmp_path / str(other)
        write(folder)
        if other:
            (folder / "config.json").write_text("{}")
        ShardedWeights(folder, "model").remove()
        assert folder.exists() == other
    assert [path.name for path in (tmp_path / "True").iterdir()] == ["config.json"]
