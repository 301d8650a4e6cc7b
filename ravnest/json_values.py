"""Values as JSON takes them.

In: mappings, sequences, paths and numbers. Out: the same as JSON writes it: a path becomes text, and a number that is
not finite becomes null.
"""

import math
from collections.abc import Mapping
from pathlib import Path


def plain(value: object) -> object:
    """`value` as dicts with text keys, lists, text, numbers, booleans and None."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value
