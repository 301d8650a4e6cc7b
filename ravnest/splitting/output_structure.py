"""What a model returns, as plain data: a tensor, or tensors in dicts, tuples, and classes such as ModelOutput.

In: the structure that torch.export found, and the tensors that the last stage computes. Out: the same objects as the
model itself would return, which a loss of the user's takes; and the tensors in such an object by their paths ("output",
"0", "logits", "hidden.1"), by which named losses and errors speak of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils._pytree import (
    SUPPORTED_NODES,
    TreeSpec,
    tree_flatten_with_path,
    tree_unflatten,
)

from ravnest.errors import ModelNotSplittable
from ravnest.factories import resolve

_BUILT_IN: Mapping[str, type] = {"tuple": tuple, "list": list}


@dataclass(frozen=True)
class OutputNode:
    """An object that holds others."""

    kind: str
    """`tuple`, `list`, `dict`, `named` (a namedtuple) or `registered` (a class that torch's pytree knows)."""
    parts: tuple["OutputTree", ...]
    reference: str = ""
    """`module:name` of the class, of the last two kinds."""
    context: Any = None
    """The keys of a dict, or what the registered class needs besides its parts."""


OutputTree: TypeAlias = OutputNode | int | None
"""A node, the position of a tensor among the outputs of the last stage, or None where the model returns None."""


def structure_of(spec: TreeSpec, places: Sequence[int | None]) -> OutputTree:
    """The structure of what a model returns. `places`: of each leaf of `spec`, its position among the outputs.

    Raises ModelNotSplittable for an object of a class that a stage could not import.
    """
    remaining = iter(places)

    def built(node: TreeSpec) -> OutputTree:
        if node.is_leaf():
            return next(remaining)
        parts = tuple(built(child) for child in node.children())
        for name, kind in _BUILT_IN.items():
            if node.type is kind:
                return OutputNode(name, parts)
        if node.type is dict:
            return OutputNode("dict", parts, context=tuple(node.context))
        if isinstance(node.context, type):  # torch files every namedtuple under collections.namedtuple
            return OutputNode("named", parts, _reference(node.context))
        return OutputNode("registered", parts, _reference(node.type), _of_tuples(node.context))

    return built(spec)


def _of_tuples(context: Any) -> Any:
    return tuple(map(_of_tuples, context)) if isinstance(context, list | tuple) else context


def rebuilt(tree: OutputTree, outputs: Sequence[Any]) -> Any:
    """What the model returns, with `outputs` in it. Raises InvalidInput where a class of it cannot be imported."""
    if not isinstance(tree, OutputNode):
        return None if tree is None else outputs[tree]
    parts = [rebuilt(part, outputs) for part in tree.parts]
    if tree.kind == "dict":
        return dict(zip(tree.context, parts, strict=True))
    if tree.kind in _BUILT_IN:
        return _BUILT_IN[tree.kind](parts)
    made = _class(tree.reference)
    return made(*parts) if tree.kind == "named" else SUPPORTED_NODES[made].unflatten_fn(parts, tree.context)


def leaf_names(spec: TreeSpec) -> list[str]:
    """The path of each leaf of a structure; "output" for a leaf that is alone."""
    return [_path(path) for path, _ in tree_flatten_with_path(tree_unflatten(list(range(spec.num_leaves)), spec))[0]]


def leaves_by_path(value: object) -> dict[str, Any]:
    """What an object that a model or a data set returns holds, by path; "output" for what is alone."""
    return {_path(path): leaf for path, leaf in tree_flatten_with_path(value)[0]}


def tensors_by_path(value: object) -> dict[str, Tensor]:
    """The tensors among `leaves_by_path`."""
    return {path: leaf for path, leaf in leaves_by_path(value).items() if isinstance(leaf, torch.Tensor)}


def shapes_of(value: object) -> str:
    """The shapes of the tensors in an object, for a message."""
    found = tensors_by_path(value)
    if list(found) == ["output"]:
        return str(tuple(found["output"].shape))
    return ", ".join(f"{path} {tuple(tensor.shape)}" for path, tensor in found.items()) or type(value).__name__


@cache
def _class(reference: str) -> Any:
    return resolve(reference, (), key="model")  # the folder of the user's own code is on sys.path by now


def _path(path: Sequence[Any]) -> str:
    parts = [str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", key)))) for key in path]
    return ".".join(parts) or "output"


def _reference(kind: Any) -> str:
    name = getattr(kind, "__qualname__", str(kind))
    if not all(part.isidentifier() for part in name.split(".")):
        raise ModelNotSplittable(
            f"the model returns {name}, a class that is defined in a function: the last stage cannot import it"
        )
    return f"{kind.__module__}:{name}"
