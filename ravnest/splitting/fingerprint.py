"""A name for what a captured model is: equal graphs, shapes, weights' names and cuts give equal fingerprints.

Independent of the process, of object ids and of hash seeds. Values are numbered, since their names in the
exported graph are not part of the model. Weights' values are not covered, constants' are."""

import hashlib
from collections.abc import Sequence

from ravnest.splitting.liveness import Layout
from ravnest.splitting.operations import Argument, Value


def fingerprint(modes: Sequence[Layout], positions: Sequence[int]) -> str:
    """32 hexadecimal digits."""
    digest = hashlib.sha256()
    for layout in modes:
        for line in _lines(layout):
            digest.update(line.encode())
            digest.update(b"\n")
        for name, constant in sorted(layout.converted.constants.items()):
            digest.update(name.encode())
            digest.update(bytes(constant.contiguous().untyped_storage()))
    digest.update(repr(tuple(positions)).encode())
    return digest.hexdigest()[:32]


def _lines(layout: Layout) -> list[str]:
    converted = layout.converted
    numbers = {name: number for number, name in enumerate(converted.inputs)}
    lines = [f"input {name} {converted.shapes[name]} {layout.measured.tensors[name].dtype}" for name in numbers]
    lines += [repr(spec) for spec in (*converted.parameters.values(), *converted.buffers.values())]
    for operation in layout.operations:
        args = _numbered(operation.args, numbers)
        kwargs = sorted((key, repr(_numbered(argument, numbers))) for key, argument in operation.kwargs)
        numbers[operation.name] = len(numbers)
        shape = converted.shapes.get(operation.name)
        lines.append(f"{operation.target} {args!r} {kwargs!r} {operation.contexts!r} {shape}")
    lines.append(repr((_numbered(converted.graph.outputs, numbers), converted.output_names)))
    return lines


def _numbered(argument: Argument, numbers: dict[str, int]) -> Argument:
    if isinstance(argument, Value):
        return f"%{numbers[argument.name]}"
    if isinstance(argument, tuple):
        return tuple(_numbered(element, numbers) for element in argument)
    return argument
