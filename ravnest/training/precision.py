"""The number formats of a job: what it computes in, what tensors travel in, and the loss scale that float16 needs.

Weights, gradients and the optimizer stay in float32 whatever the precision: autocast (ravnest/stage/device.py)
chooses by operation. bfloat16 has float32's range. float16 has not: small gradients round to 0 and large ones to
infinity, so a backward is run on gradients times a scale, and its result is divided by it. The scale is a power of two,
so that this rounds nothing.

What travels has a form of its own. The arithmetic of the forms is ring_allreduce's; which tensors of a cut travel in
them is decided in ravnest/stage/boundary_tensors.py.
"""

from collections.abc import Mapping
from typing import Literal, TypeAlias

from ravnest.errors import RunFailed
from ravnest.job_sections import Section
from ring_allreduce.ring import Wire, bytes_per_element

Precision: TypeAlias = Literal["float32", "bfloat16", "float16"]
WireName: TypeAlias = Literal["float32", "bfloat16", "float16", "int8", "int4"]
RoundWireName: TypeAlias = WireName | Literal["sparse"]
"""What rounds may travel in: `sparse` needs what it leaves out to be fed back, which rounds do."""

_WIRES: Mapping[RoundWireName, Wire] = {
    "float32": "exact",
    "bfloat16": "bfloat16",
    "float16": "float16",
    "int8": "int8",
    "int4": "int4",
    "sparse": "sparse",
}
_FLOAT32_BYTES = 4

FIRST_SCALE = 2.0**16
LARGEST_SCALE = 2.0**24
SMALLEST_SCALE = 2.0**-24
GROW_AFTER = 2000
"""The scale doubles after so many backwards in a row without an overflow."""


class LossScale:
    """The loss scale of one stage: it is halved at each overflow, and doubled after a long time without one."""

    def __init__(self, value: float = FIRST_SCALE) -> None:
        self.value = value
        self.overflows = 0
        """Overflows since the start."""
        self._fine = 0

    def overflowed(self) -> None:
        """Halve the scale. Raises RunFailed where no scale helps: the gradient that arrived is not finite itself."""
        self.overflows += 1
        self._fine = 0
        self.value /= 2
        if self.value < SMALLEST_SCALE:
            raise RunFailed("a gradient is not finite at any scale: training has diverged (lower optimizer.lr)")

    def was_fine(self) -> None:
        """Note a backward without an overflow."""
        self._fine += 1
        if self._fine >= GROW_AFTER:
            self._fine = 0
            self.value = min(2 * self.value, LARGEST_SCALE)


class WireConfig(Section):
    """The `wire` section of the job file: how tensors travel between the stages of a pipeline."""

    activations: WireName = "float32"
    """The form of activations: float32 is exact, bfloat16 and float16 take half the bytes, int8 a quarter,
    int4 an eighth and a little."""

    gradients: WireName = "float32"
    """The form of gradients."""


def ring_wire(name: RoundWireName) -> Wire:
    """The name that ring_allreduce has for a form."""
    return _WIRES[name]


def bytes_per_float32_byte(name: RoundWireName) -> float:
    """How many bytes each byte of a float32 tensor takes on the wire."""
    return bytes_per_element(_WIRES[name]) / _FLOAT32_BYTES
