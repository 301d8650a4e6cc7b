"""Weights divided over several files, as Hugging Face does: which tensor goes where, and the index that tells. Pure."""

import json
from collections.abc import Mapping, Sequence


def shards(sizes: Mapping[str, int], most_bytes: int) -> list[list[str]]:
    """Names in order, in groups of at most `most_bytes` each; a tensor that is larger has a group of its own."""
    groups: list[list[str]] = [[]]
    held = 0
    for name, size in sizes.items():
        if groups[-1] and held + size > most_bytes:
            groups.append([])
            held = 0
        groups[-1].append(name)
        held += size
    return groups


def shard_names(stem: str, count: int) -> list[str]:
    """`model.safetensors`, or `model-00001-of-00003.safetensors` and so on."""
    if count == 1:
        return [f"{stem}.safetensors"]
    return [f"{stem}-{number:05d}-of-{count:05d}.safetensors" for number in range(1, count + 1)]


def index_name(stem: str) -> str:
    return f"{stem}.safetensors.index.json"


def index(groups: Sequence[Sequence[str]], names: Sequence[str], total_bytes: int) -> str:
    """The index of `groups` in files called `names`."""
    places = {tensor: name for group, name in zip(groups, names, strict=True) for tensor in group}
    return json.dumps({"metadata": {"total_size": total_bytes}, "weight_map": places}, indent=2) + "\n"
