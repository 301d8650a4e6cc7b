"""Two clean-ups of a converted list of operations, neither of which changes what the model computes."""

from collections.abc import Iterable

import torch

from ravnest.splitting.operations import (
    Operation,
    Reference,
    Value,
    Weight,
    is_random,
    resolve_target,
    written_arguments,
)


def assign_early(operations: list[Operation]) -> list[Operation]:
    """`self.buffer = value` is exported as a copy at the very end. It moves to just behind the last use of
    the old value, so that buffer and value are not tied to the end of the model."""
    moved = list(operations)
    for copy in [op for op in operations if op.target == "aten.copy_.default" and isinstance(op.args[0], Weight)]:
        moved.remove(copy)
        needed = set(copy.references())
        after = 0
        for position, operation in enumerate(moved):
            touches = any(reference in needed for reference in operation.references())
            if touches or Value(operation.name) in needed:
                after = position + 1
                if copy.args[0] in set(operation.references()) and _may_return_view(operation):
                    after = len(moved)
                    break
        moved.insert(after, copy)
    return moved


def _may_return_view(operation: Operation) -> bool:
    function = resolve_target(operation.target)
    return not isinstance(function, torch._ops.OpOverload) or any(
        result.alias_info is not None for result in function._schema.returns
    )


def without_dead(operations: list[Operation], outputs: Iterable[Reference]) -> list[Operation]:
    """Drops what nothing reads. Random operations stay: the ones after them must draw the same numbers."""
    needed: set[Reference] = set(outputs)
    kept = []
    for operation in reversed(operations):
        if Value(operation.name) in needed or written_arguments(operation) or is_random(operation.target):
            needed.update(operation.references())
            kept.append(operation)
    return kept[::-1]
