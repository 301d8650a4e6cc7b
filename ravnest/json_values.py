"""Values as JSON takes them. Decides that paths become text and that a number which is not finite becomes null."""

import math
from collections.abc import Mapping
from pathlib import Path


def plain(value: object) -> object:
    """`value` made of dicts with text keys, lists, text, numbers, booleans and None."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value
