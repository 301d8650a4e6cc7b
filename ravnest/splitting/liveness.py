"""Which values are alive at each position of a graph, and where a graph must not be cut.

In: one mode of a model, converted and measured. Out: a `GraphLayout`: for each position, what a cut there would send.
Position p lies before operation p. Operations that depend on no input, parameter or random number (rotary tables,
causal masks, sizes) are *free*: every stage that needs one computes it itself instead of receiving it.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from ravnest.errors import ModelNotSplittable
from ravnest.splitting.conversion import Converted, Size
from ravnest.splitting.operation_costs import Measured
from ravnest.splitting.program import (
    Operation,
    Reference,
    SpanCode,
    Symbol,
    SymbolSource,
    Value,
    Weight,
    is_random,
)

SENDABLE = frozenset(
    {
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
    }
)
"""The dtypes that travel between stages. A complex tensor travels as its real and imaginary parts."""


@dataclass(frozen=True)
class GraphLayout:
    """One mode of a model, ready to be cut."""

    converted: Converted
    measured: Measured
    free: frozenset[str]
    alive: tuple[tuple[Reference, ...], ...]
    """For each position, the end included: what a cut there sends, in order of definition. Sizes are sent only where no
    tensor that is sent has them."""
    joined: tuple[tuple[int, int], ...]
    """(first, last) operations that must stay in one unit, since they share memory that one of them changes."""
    anchored: dict[str, tuple[int, int]]
    """The first and last use of every weight that one unit must own: parameters, and buffers that the graph changes."""

    positions: dict[str, int]
    """Name of an operation's result → the first position behind the operation."""

    @property
    def operations(self) -> tuple[Operation, ...]:
        """The operations, in execution order."""
        return self.converted.graph.operations

    def defined(self, item: Reference) -> int:
        """The first position at which the item exists."""
        return self.positions.get(item.name, 0)

    def sides(self, weight: str, position: int) -> frozenset[str]:
        """Return the sides of a cut at `position` on which an anchored weight is used: before, behind, or both."""
        if weight not in self.anchored:
            return frozenset()
        first, last = self.anchored[weight]
        return frozenset(side for side, used in (("before", first < position), ("behind", last >= position)) if used)

    def can_travel(self, item: Reference) -> bool:
        """Whether an item can be sent: tensors and integers can; lists of tensors, floats and truth values cannot."""
        if not isinstance(item, Value):
            return isinstance(item, Symbol)
        facts = self.measured.tensors.get(item.name)
        if facts is None:
            return item.name in self.converted.integers
        return (facts.dtype.to_real() if facts.dtype.is_complex else facts.dtype) in SENDABLE

    def code(self, start: int, end: int, inputs: tuple[Reference, ...], outputs: tuple[Reference, ...]) -> SpanCode:
        """The operations [start, end), and the free ones that they and the outputs need."""
        needed: set[Reference] = set(outputs)
        kept = []
        for position in range(len(self.operations) - 1, -1, -1):
            operation = self.operations[position]
            inside = start <= position < end and operation.name not in self.free
            if inside or (operation.name in self.free and Value(operation.name) in needed):
                kept.append(operation)
                needed.update(operation.references())
        symbols = sorted(item.name for item in needed if isinstance(item, Symbol) and item not in inputs)
        sources = tuple(self._source(symbol, inputs) for symbol in symbols)
        return SpanCode(tuple(kept[::-1]), inputs, outputs, sources)

    def _source(self, symbol: str, inputs: tuple[Reference, ...]) -> SymbolSource:
        for position, item in enumerate(inputs):
            for dim, size in enumerate(self._sizes(item)):
                if size == symbol:
                    return SymbolSource(symbol, position, dim)
        raise AssertionError(f"no input tells {symbol}")

    def _sizes(self, item: Reference) -> tuple[Size, ...]:
        return self.converted.shapes.get(item.name, ()) if isinstance(item, Value) else ()


def lay_out(converted: Converted, measured: Measured, changed_weights: frozenset[str]) -> GraphLayout:
    """The layout of one mode. `changed_weights`: buffers that either mode changes, which have one owner in both."""
    changed = {storage for facts in measured.operations for storage in facts.writes}
    unsteady = changed | {measured.weights[name] for name in changed_weights}
    free = _free(converted, measured, unsteady)
    uses = _weight_uses(converted.graph.operations)
    return GraphLayout(
        converted,
        measured,
        free,
        _alive(converted, free),
        _joined(converted, measured, changed),
        {name: uses[name] for name in uses if name in converted.parameters or name in changed_weights},
        {op.name: position + 1 for position, op in enumerate(converted.graph.operations)},
    )


def changed_weights(converted: Converted, measured: Measured) -> frozenset[str]:
    """The buffers that the graph changes. Raises ModelNotSplittable where it changes a parameter or a constant."""
    changed = {storage for facts in measured.operations for storage in facts.writes}
    names = {name for name, storage in measured.weights.items() if storage in changed}
    for name in sorted(names - converted.buffers.keys()):
        kind = "parameter" if name in converted.parameters else "constant"
        raise ModelNotSplittable(f"the model's forward changes the {kind} {name!r} in place")
    return frozenset(names)


def _free(converted: Converted, measured: Measured, unsteady: set[int]) -> frozenset[str]:
    free: set[str] = set()
    for operation, facts in zip(converted.graph.operations, measured.operations, strict=True):
        if (facts.reads & unsteady) or is_random(operation.target):
            continue
        if all(
            (isinstance(reference, Value) and reference.name in free)
            or (isinstance(reference, Weight) and reference.name not in converted.parameters)
            or isinstance(reference, Symbol)
            for reference in operation.references()
        ):
            free.add(operation.name)
    return frozenset(free)


def _alive(converted: Converted, free: frozenset[str]) -> tuple[tuple[Reference, ...], ...]:
    operations = converted.graph.operations
    last_use: dict[Reference, int] = {}
    for position, items in enumerate(_needs(converted, free)):
        for item in items:
            last_use[item] = position
    symbols = sorted((item for item in last_use if isinstance(item, Symbol)), key=lambda item: item.name)
    values: list[Value] = [Value(name) for name in converted.inputs]
    alive: list[tuple[Reference, ...]] = []
    for position in range(len(operations) + 1):
        values = [value for value in values if last_use.get(value, -1) >= position]
        known = {size for value in values for size in converted.shapes.get(value.name, ())}
        unknown = [item for item in symbols if last_use[item] >= position and item.name not in known]
        alive.append((*values, *unknown))
        if position < len(operations) and operations[position].name not in free:
            values.append(Value(operations[position].name))
    return tuple(alive)


def _needs(converted: Converted, free: frozenset[str]) -> list[set[Reference]]:
    """The values and symbols that each operation needs, also through free ones; the last entry is for the outputs."""
    through: dict[str, set[Reference]] = {}

    def expanded(references: Iterable[Reference]) -> set[Reference]:
        items: set[Reference] = set()
        for reference in references:
            if isinstance(reference, Value) and reference.name in free:
                items |= through[reference.name]
            elif not isinstance(reference, Weight):
                items.add(reference)
        return items

    needs: list[set[Reference]] = []
    for operation in converted.graph.operations:
        items = expanded(operation.references())
        through[operation.name] = items
        needs.append(set() if operation.name in free else items)
    return [*needs, expanded(converted.graph.outputs)]


def _joined(converted: Converted, measured: Measured, changed: set[int]) -> tuple[tuple[int, int], ...]:
    # Memory of a weight stays joined up to its last use, other memory up to its last change: what is sent
    # after that no longer changes, whereas a change on the far side of a cut would be lost, or fall on a
    # received leaf.
    of_weights = set(measured.weights.values())
    of_inputs = {measured.tensors[name].storage for name in converted.inputs}
    spans: dict[int, tuple[int, int]] = dict.fromkeys(changed & of_inputs, (0, 0))
    for position, facts in enumerate(measured.operations):
        for storage in facts.reads & changed:
            first, last = spans.get(storage, (position, position))
            if storage in facts.writes or storage in of_weights:
                last = position
            spans[storage] = (first, last)
    return tuple(sorted(spans.values()))


def _weight_uses(operations: tuple[Operation, ...]) -> dict[str, tuple[int, int]]:
    uses: dict[str, tuple[int, int]] = {}
    for position, operation in enumerate(operations):
        for reference in operation.references():
            if isinstance(reference, Weight):
                uses[reference.name] = (uses.get(reference.name, (position, 0))[0], position)
    return uses
