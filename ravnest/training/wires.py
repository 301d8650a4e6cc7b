"""The forms in which tensors may travel, by the names that a job file uses, and its `wire` section.

Decides which forms there are and what they take. Their arithmetic is ring_allreduce's; which tensors of a cut travel in
them is runtime.crossings'.
"""

from collections.abc import Mapping
from typing import Literal, TypeAlias

from ravnest.job_sections import Section
from ring_allreduce.ring.wire_forms import Wire, bytes_per_element

WireName: TypeAlias = Literal["float32", "bfloat16", "float16", "int8"]

_WIRES: Mapping[WireName, Wire] = {
    "float32": "exact",
    "bfloat16": "bfloat16",
    "float16": "float16",
    "int8": "int8",
}
_FLOAT32_BYTES = 4


class WireConfig(Section):
    """How what crosses the cuts of a pipeline travels."""

    activations: WireName = "float32"
    """Forward: float32 is exact, bfloat16 and float16 take half, int8 a quarter."""

    gradients: WireName = "float32"
    """Back."""


def ring_wire(name: WireName) -> Wire:
    """The form in ring_allreduce's words."""
    return _WIRES[name]


def bytes_per_float32_byte(name: WireName) -> float:
    """What a byte of a float32 tensor takes on the wire."""
    return bytes_per_element(_WIRES[name]) / _FLOAT32_BYTES
