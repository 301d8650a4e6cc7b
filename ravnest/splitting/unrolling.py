"""The graph of a model whose layers repeat, from graphs of the same model with two and with three of them.

In: a model on the meta device with many equal blocks. Out: its graph in both modes, equal to what torch.export gives
for the whole model, or None where the blocks do not repeat. Exporting takes seconds a layer, and so minutes for a deep
model, while two and three layers take as long whatever the depth.

That the whole model does repeat its second block is not assumed:

1. In both modes its forward is run whole on the meta device, and so is that of the model with two blocks. The operators
   that reach torch's dispatcher (forward_trace.py) have to repeat those of the second block, with the weights of each
   further block and the results of the block before it.
2. The exported graph with three blocks has to repeat the second block of the one with two. So it is known where a block
   begins and ends in exported graphs, and what it reads.

Then the second block's operations are written down again for each further block.
"""

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby

from torch import Tensor, nn

from ravnest.splitting.conversion import Converted, Select, convert
from ravnest.splitting.exporting import ExportedModes, ways_to_export
from ravnest.splitting.forward_trace import trace
from ravnest.splitting.model_source import computed
from ravnest.splitting.program import Argument, ModelGraph, Operation, TensorSpec, Value, Weight
from ravnest.splitting.thinning import KEPT, Blocks, check_repeats, keep_first, repeated_blocks, second_block

LEAST_BLOCKS = 8
"""Of fewer blocks, exporting the whole model takes about as long."""


@dataclass(frozen=True)
class Modes:
    """A model's graphs of training and of evaluation, and what they were exported with."""

    graphs: tuple[Converted, Converted]
    inputs: tuple[Tensor, ...]
    """The sample, in the order in which the model takes it."""
    batch_is_dynamic: bool
    short: "Modes | None" = None
    """The graphs of the same model with two of its equal blocks, of which these were written down."""


def unrolled(
    model: nn.Module, args: tuple[Tensor, ...], kwargs: Mapping[str, Tensor], select: Select | None = None
) -> Iterator[Modes]:
    """The graphs of the whole model, in each way in which the short ones can be exported; best first.

    model: is not changed. Other arguments: as those of `capture`. There are none where the model has no or few equal
    blocks, has values, or does not repeat its second block: then it has to be exported whole.
    """
    blocks = repeated_blocks(model)
    if blocks is None or blocks.count < LEAST_BLOCKS or not all(one.is_meta for one in model.parameters()):
        return
    try:
        short, longer = _with_first(model, blocks, KEPT), _with_first(model, blocks, KEPT + 1)
        whole, part = (_traced(copy.deepcopy(one, computed(one)), args, kwargs) for one in (model, short))
        check_repeats(whole, part, blocks)
    except Exception:  # noqa: BLE001 - of whatever kind: the whole model is exported then, and what fails there is told
        return
    ways = zip(ways_to_export(short, args, kwargs), ways_to_export(longer, args, kwargs), strict=True)
    for of_short, of_longer in ways:
        try:
            two = converted(short, of_short.export(), select)
            three = converted(longer, of_longer.export(), select)
            check_repeats(three.graphs, two.graphs, Blocks(blocks.path, KEPT + 1))
        except Exception:  # noqa: BLE001 - as above
            continue
        train, evaluate = (_Unrolling(a, b, blocks).run() for a, b in zip(two.graphs, three.graphs, strict=True))
        yield replace(two, graphs=(train, evaluate), short=two)


def converted(model: nn.Module, exported: ExportedModes, select: Select | None = None) -> Modes:
    """The graphs of an exported model. Raises as `convert` does."""
    train, evaluate = (
        convert(model, program, exported.input_names, select) for program in (exported.train, exported.evaluate)
    )
    return Modes((train, evaluate), exported.inputs, exported.batch_is_dynamic)


def _with_first(model: nn.Module, blocks: Blocks, count: int) -> nn.Module:
    short = copy.deepcopy(model, computed(model))
    keep_first(short, blocks, count)
    return short


def _traced(model: nn.Module, args: tuple[Tensor, ...], kwargs: Mapping[str, Tensor]) -> tuple[Converted, Converted]:
    return trace(model.train(), args, kwargs), trace(model.eval(), args, kwargs)


class _Unrolling:
    """Writes down one mode of the whole model."""

    def __init__(self, short: Converted, longer: Converted, blocks: Blocks) -> None:
        operations = short.graph.operations
        added = len(longer.graph.operations) - len(operations)
        self._short, self._blocks = short, blocks
        self._begin, self._length = second_block(short, added, Blocks(blocks.path, KEPT + 1))
        self._end = self._begin + self._length
        self._places = {operation.name: place for place, operation in enumerate(operations)}

    def run(self) -> Converted:
        short, added = self._short, self._blocks.count - KEPT
        operations = short.graph.operations
        block = operations[self._begin : self._end]
        repeated = [self._moved(operation, by) for by in range(1, added + 1) for operation in block]
        behind = [
            replace(each, args=self._behind(each.args), kwargs=self._behind(each.kwargs))
            for each in operations[self._end :]
        ]
        result = replace(
            short,
            graph=ModelGraph((*operations[: self._end], *repeated, *behind), self._behind(short.graph.outputs)),
            parameters=self._specs(short.parameters),
            buffers=self._specs(short.buffers),
            shapes=dict(short.shapes),
            constants=dict(short.constants),
        )
        integers = set(short.integers)
        for operation in block:
            for by in range(1, added + 1):
                name = _name(operation.name, by)
                if operation.name in short.shapes:
                    result.shapes[name] = short.shapes[operation.name]
                if operation.name in short.integers:
                    integers.add(name)
        result.integers = frozenset(integers)
        return result

    def _moved(self, operation: Operation, by: int) -> Operation:
        """An operation of the second block, as the block `by` blocks behind it has it."""
        return replace(
            operation,
            name=_name(operation.name, by),
            args=self._argument(operation.args, by),
            kwargs=self._argument(operation.kwargs, by),
            scope=self._blocks.moved(operation.scope, by),
        )

    def _argument(self, argument: Argument, by: int) -> Argument:
        match argument:
            case Value(name):
                place = self._places.get(name)
                # What comes from the block before moves along; what comes from before all blocks does not.
                if place is None or place < max(self._begin - self._length, 0):
                    return argument
                if place < self._begin:
                    place, by = place + self._length, by - 1
                return Value(_name(self._short.graph.operations[place].name, by))
            case Weight(name):
                return Weight(self._blocks.moved(name, by))
            case tuple():
                return tuple(self._argument(element, by) for element in argument)
        return argument

    def _behind(self, argument: Argument) -> Argument:
        """An argument of an operation behind the last block."""
        match argument:
            case Value(name):
                place = self._places.get(name, -1)
                inside = self._begin <= place < self._end
                return Value(_name(name, self._blocks.count - KEPT)) if inside else argument
            case Weight(name) if self._blocks.index_in(name) == 1:
                return Weight(self._blocks.moved(name, self._blocks.count - KEPT))
            case tuple():
                return tuple(self._behind(element) for element in argument)
        return argument

    def _specs(self, specs: Mapping[str, TensorSpec]) -> dict[str, TensorSpec]:
        """The weights in the model's own order: behind each run of those of the second block, those of the others."""
        result: dict[str, TensorSpec] = {}
        for inside, run in groupby(specs.values(), lambda spec: self._blocks.index_in(spec.name) == 1):
            found = list(run)
            for by in range(self._blocks.count - KEPT + 1 if inside else 1):
                moved = [replace(spec, name=self._blocks.moved(spec.name, by)) for spec in found] if inside else found
                result |= {spec.name: spec for spec in moved}
        return result


def _name(name: str, by: int) -> str:
    """The name of a result of the second block in the block `by` blocks behind it."""
    return f"{name}_of_block_{KEPT - 1 + by}" if by else name
