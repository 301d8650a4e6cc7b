"""Fewer equal layers: what is tried on a model whose layers repeat, where the whole model is too large to be tried.

In: a model whose blocks stand in an nn.ModuleList or nn.Sequential. Out: the same model with two of these blocks, and a
proof that the captured graph of the whole model repeats the second of them. What is found to be right for the short
model is then right for the whole one, since every further block makes the same calls on the same shapes.

The proof compares the operations of both graphs one by one: up to the end of the second block they are the same, each
further block repeats the second with its own weights and with what the block before it gives, and behind the last block
they are the same again.

The same comparison serves unrolling.py, which makes the whole graph from short ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from ravnest.errors import ModelNotSplittable
from ravnest.splitting.conversion import Converted
from ravnest.splitting.program import Operation, TensorSpec, Value, Weight

KEPT = 2
"""The blocks that stay: one behind the part before them, and one behind another block."""


@dataclass(frozen=True)
class Blocks:
    """The blocks that repeat: `count` of them, in the container of that path."""

    path: str
    count: int

    def index_in(self, name: str) -> int | None:
        """The number of the block that a weight's name or a module's path lies in; None where it is in none."""
        first = name.removeprefix(f"{self.path}.").partition(".")[0] if name.startswith(f"{self.path}.") else ""
        return int(first) if first.isdigit() else None

    def moved(self, name: str, by: int) -> str:
        """The name of the same weight, so many blocks further on."""
        index = self.index_in(name)
        if index is None:
            return name
        rest = name[len(f"{self.path}.{index}") :]
        return f"{self.path}.{index + by}{rest}"


def repeated_blocks(model: nn.Module) -> Blocks | None:
    """The container of equal blocks in which most bytes of weights repeat; None where there is none.

    Blocks are equal where their modules are of the same classes, print alike, and have weights of the same names,
    shapes and dtypes. Blocks that share weights with each other or with anything else are none.
    """
    found: dict[Blocks, int] = {}
    uses: dict[int, int] = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            uses[id(parameter)] = uses.get(id(parameter), 0) + 1
    for path, module in model.named_modules():
        if not isinstance(module, nn.ModuleList | nn.Sequential) or len(module) <= KEPT or not path:
            continue
        forms = {_form(block) for block in module}
        shared = any(uses[id(parameter)] > 1 for parameter in module.parameters())
        if len(forms) == 1 and not shared:
            repeated = list(module)[KEPT:]
            found[Blocks(path, len(module))] = sum(p.nbytes for block in repeated for p in block.parameters())
    best = max(found, key=lambda blocks: found[blocks], default=None)
    return best if best is not None and found[best] else None


def _form(block: nn.Module) -> tuple[object, ...]:
    weights = [
        (name, tuple(tensor.shape), tensor.dtype, tensor.requires_grad)
        for name, tensor in (*block.named_parameters(), *block.named_buffers())
    ]
    return type(block), repr(block), tuple(weights)


def keep_first(model: nn.Module, blocks: Blocks, count: int = KEPT) -> None:
    """Drops all blocks of the model but the first `count`."""
    container: Any = model.get_submodule(blocks.path)
    del container[count:]


def check_repeats(whole: Sequence[Converted], short: Sequence[Converted], blocks: Blocks) -> None:
    """Raises ModelNotSplittable, naming the operation, where `whole` does not repeat the second block of `short`.

    Both are the graphs of training and of evaluation; `blocks` are those of `whole`.
    """
    for mode, ours, theirs in zip(("training", "evaluation"), whole, short, strict=True):
        _Comparison(mode, ours, theirs, blocks).run()


def second_block(short: Converted, added: int, blocks: Blocks) -> tuple[int, int]:
    """Where the operations of the second block begin in a graph with two blocks, and how many there are in each block.

    `added`: how many operations another graph has more than `short`, with the blocks of `blocks`. Raises ValueError
    where that is not a whole number for each further block.
    """
    length, rest = divmod(added, blocks.count - KEPT)
    if rest or length <= 0:
        raise ValueError(f"{added} operations are not those of {blocks.count - KEPT} blocks")
    operations = short.graph.operations
    begin = next((at for at, each in enumerate(operations) if blocks.index_in(each.scope) == 1), len(operations))
    return begin, length


class _Comparison:
    """Compares one mode of the whole model with that of the short one."""

    def __init__(self, mode: str, whole: Converted, short: Converted, blocks: Blocks) -> None:
        self._mode, self._blocks = mode, blocks
        self._whole, self._short = whole, short
        self._begin, self._length = 0, 0  # of the second block
        self._places = [
            {operation.name: place for place, operation in enumerate(graph.operations)}
            for graph in (whole.graph, short.graph)
        ]

    def run(self) -> None:
        ours, theirs = self._whole.graph.operations, self._short.graph.operations
        added = self._blocks.count - KEPT
        try:
            begin, length = second_block(self._short, len(ours) - len(theirs), self._blocks)
        except ValueError:
            self._refuse(f"{len(ours)} operations cannot be {added} times what {len(theirs)} are with two blocks")
        end = begin + length  # of the second block
        self._begin, self._length = begin, length
        for place, operation in enumerate(ours):
            block = min(max((place - begin) // length, 0), added) if place >= begin else 0
            self._equal(operation, theirs[place - block * length], block, behind=place >= end + added * length)
        results = self._whole.graph.outputs, self._short.graph.outputs
        if not self._same(*results, added, True):
            self._refuse("it returns something else")
        for name, spec in self._whole.parameters.items():
            index = self._blocks.index_in(name)
            other = name if index is None or index < KEPT else self._blocks.moved(name, 1 - index)
            if not _alike(spec, self._short.parameters.get(other)):
                self._refuse(f"{name!r} is no weight like {other!r}")

    def _equal(self, ours: Operation, theirs: Operation, block: int, *, behind: bool) -> None:
        alike = (ours.target, ours.contexts) == (theirs.target, theirs.contexts)
        if not alike or not self._same((ours.args, ours.kwargs), (theirs.args, theirs.kwargs), block, behind):
            self._refuse(f"{ours.described} is not {theirs.described} again")

    def _same(self, ours: Any, theirs: Any, block: int, behind: bool) -> bool:
        """Whether two arguments are the same, `block` blocks apart; `behind`: of an operation behind the last block."""
        match ours, theirs:
            case Value(), Value():
                mine, other = self._places[0].get(ours.name), self._places[1].get(theirs.name)
                if mine is None or other is None:
                    return bool(ours.name == theirs.name)  # an input
                # What comes from the block before moves along; what comes from before all blocks does not.
                first = self._begin if behind else self._begin - self._length
                return mine == (other + block * self._length if other >= max(first, 0) else other)
            case Weight(), Weight():
                if ours.name in self._whole.constants:
                    found = self._short.constants.get(theirs.name)
                    return found is not None and _equal_tensors(self._whole.constants[ours.name], found)
                index = self._blocks.index_in(theirs.name)
                moves = index is not None and (index == 1 or not behind)
                return bool(ours.name == (self._blocks.moved(theirs.name, block) if moves else theirs.name))
            case tuple(), tuple():
                pairs = zip(ours, theirs, strict=False)
                return len(ours) == len(theirs) and all(self._same(a, b, block, behind) for a, b in pairs)
        return type(ours) is type(theirs) and (ours == theirs or (ours != ours and theirs != theirs))

    def _refuse(self, why: str) -> NoReturn:
        raise ModelNotSplittable(
            f"the blocks of {self._blocks.path!r} cannot be checked by two of them: in {self._mode}, {why}"
        )


def _alike(spec: TensorSpec, other: TensorSpec | None) -> bool:
    return other is not None and (spec.shape, spec.dtype, spec.requires_grad) == (
        other.shape,
        other.dtype,
        other.requires_grad,
    )


def _equal_tensors(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype and torch.equal(one, other)
