import json

from hypothesis import given
from hypothesis import strategies as st

from ravnest.checkpoints.weight_files import index_name, shard_index, shard_names, shards


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
