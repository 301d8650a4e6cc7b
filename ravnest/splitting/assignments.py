"""When a graph writes its buffers: as early as it can, and as a new value where that leaves more places to cut.

In: the operations of a converted graph. Out: operations that compute the same numbers, and leave the same buffers
behind. torch.export writes an assigned buffer (`self.seen = self.seen + 1`) at the very end of the graph, and leaves a
change in place (`self.calls += 1`) as it is, so that everything that reads the buffer shares its memory. Both would tie
the buffer's first use to its last one, and the model could not be cut between them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from ravnest.splitting.program import (
    Argument,
    Operation,
    Reference,
    TensorSpec,
    Value,
    Weight,
    resolve_target,
    written_arguments,
)

_COPY = "aten.copy_.default"
_COUNTING = ("add_", "sub_", "mul_")
"""The changes in place that are made into new values where the other operand is a number."""


def assign_early(operations: Sequence[Operation]) -> list[Operation]:
    """Move assignments to buffers, which are exported as copies at the very end, just behind the old value's last use.

    So buffer and value are not tied to the end of the model; what the model computes does not change. A copy of a
    buffer onto itself, which is what a change in place leaves at the end, is dropped.
    """
    made = {operation.name: operation for operation in operations}
    moved = list(operations)
    for copy in [op for op in operations if op.target == _COPY and isinstance(op.args[0], Weight)]:
        moved.remove(copy)
        if _memory_of(copy.args[1], made) == copy.args[0]:
            continue
        moved.insert(_earliest(copy, moved), copy)
    return moved


def _earliest(copy: Operation, operations: Sequence[Operation]) -> int:
    """The first position at which the new value is there and final, and the old one is no longer read."""
    old, new = copy.args
    after = 0
    for position, operation in enumerate(operations):
        reads = set(operation.references())
        if Value(operation.name) == new or old in reads:
            after = position + 1
        if new in reads and new in written_arguments(operation):
            after = position + 1
        if old in reads and _may_return_view(operation):
            return len(operations)
        if new in reads and _may_return_view(operation) and any(map(_writes_a_value, operations[position:])):
            return len(operations)
    return after


def _writes_a_value(operation: Operation) -> bool:
    return any(isinstance(argument, Value) for argument in written_arguments(operation))


def _memory_of(argument: Argument, made: Mapping[str, Operation]) -> Argument:
    """What a value is the very memory of: itself, or what was changed in place to make it."""
    while isinstance(argument, Value) and argument.name in made:
        operation = made[argument.name]
        if not _changes_its_first(operation):
            break
        argument = operation.args[0]
    return argument


def _changes_its_first(operation: Operation) -> bool:
    """Whether the call changes its first argument in place and returns it."""
    function = resolve_target(operation.target)
    if not isinstance(function, torch._ops.OpOverload) or len(function._schema.returns) != 1:
        return False
    returned = function._schema.returns[0].alias_info
    return returned is not None and returned.is_write and written_arguments(operation) == operation.args[:1]


def _may_return_view(operation: Operation) -> bool:
    function = resolve_target(operation.target)
    return not isinstance(function, torch._ops.OpOverload) or any(
        result.alias_info is not None for result in function._schema.returns
    )


def count_apart(
    operations: Sequence[Operation], buffers: Mapping[str, TensorSpec], outputs: Sequence[Reference] = ()
) -> list[Operation]:
    """Make `self.calls += 1` into a new value that is assigned, as `self.calls = self.calls + 1` is.

    So what reads the counter later reads the value, which can be sent to another stage as any other can. This is done
    for buffers that are read after a change, that the graph changes in place only by adding, subtracting or multiplying
    numbers, of which it takes no view, and which are not among its outputs: nothing else can tell the difference.
    """
    counters: dict[str, Reference] = {  # what each buffer holds so far
        name: Weight(name) for name in buffers if _only_counts(name, operations, outputs, buffers[name])
    }
    if not counters:
        return list(operations)
    found: list[Operation] = []
    same: dict[Reference, str] = {Weight(name): name for name in counters}
    """The buffer that each result of a change in place is the memory of."""
    for operation in operations:
        first = operation.args[0] if operation.args else None
        counter = same.get(first) if isinstance(first, Value | Weight) else None
        if counter is not None and operation.target == _COPY:
            continue  # a copy onto itself
        if counter is not None and _counts(operation, buffers[counter]):
            target = operation.target.replace("_.", ".", 1)
            found.append(replace(operation, target=target, args=(counters[counter], *operation.args[1:])))
            same[Value(operation.name)] = counter
            counters[counter] = Value(operation.name)
            continue
        current = {old: counters[name] for old, name in same.items()}
        args = tuple(_with(argument, current) for argument in operation.args)
        kwargs = tuple((key, _with(argument, current)) for key, argument in operation.kwargs)
        found.append(replace(operation, args=args, kwargs=kwargs))
    for name, value in counters.items():
        found.append(Operation(f"{value.name}_kept", _COPY, (Weight(name), value)))
    return found


def _only_counts(name: str, operations: Sequence[Operation], outputs: Sequence[Reference], spec: TensorSpec) -> bool:
    same: set[Reference] = {Weight(name)}
    counted = read_later = False
    for operation in operations:
        if not any(reference in same for reference in operation.references()):
            continue
        if _counts(operation, spec) and operation.args[0] in same:
            same.add(Value(operation.name))
            counted = True
        elif operation.target == _COPY and operation.args[0] == Weight(name) and operation.args[1] in same:
            continue
        elif _may_return_view(operation):
            return False
        else:
            read_later = read_later or counted
    return read_later and not same & set(outputs)


def _counts(operation: Operation, spec: TensorSpec) -> bool:
    """Whether the call adds, subtracts or multiplies a number in place that leaves the buffer's dtype as it is."""
    space, name, overload = operation.target.split(".") if operation.target.count(".") == 2 else ("", "", "")
    if space != "aten" or name not in _COUNTING or overload not in ("Tensor", "Scalar"):
        return False
    allowed = (int, float) if spec.dtype.is_floating_point else (int,)
    numbers = (*operation.args[1:], *(value for _, value in operation.kwargs))
    return all(isinstance(number, allowed) and not isinstance(number, bool) for number in numbers)


def _with(argument: Argument, current: Mapping[Reference, Reference]) -> Argument:
    if isinstance(argument, tuple):
        return tuple(_with(element, current) for element in argument)
    return current.get(argument, argument) if isinstance(argument, Value | Weight) else argument
