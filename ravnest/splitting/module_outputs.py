"""The modules whose outputs cross the cuts of a model: where it could be narrowed, so that cuts there cost few bytes.

In: a captured model. Out: for each unit's end the module, by its path, of which one tensor of floating point crosses
there, and no other of that kind does. The tensor is a module's output where the last operation of the module, and of
those inside it, makes it. What is told is no more than likely: whether a bottleneck can be put there, and what crosses
then, is seen when the model with it is captured (ravnest/planning/bottleneck_advice.py).
"""

from dataclasses import dataclass

from ravnest.splitting.capturing import CapturedModel
from ravnest.splitting.liveness import GraphLayout
from ravnest.splitting.program import Value

_CONVOLUTION = "aten.conv"


@dataclass(frozen=True)
class ModuleOutput:
    """A module whose output crosses a cut. Its features are `features` in the dimension `dim`."""

    name: str
    features: int
    dim: int


def module_outputs(captured: CapturedModel) -> tuple[ModuleOutput | None, ...]:
    """For each unit, what crosses its end; None where that is no output of one module, and for the last unit."""
    return (*(_crossing(captured.train, position) for position in captured.positions[1:-1]), None)


def _crossing(layout: GraphLayout, position: int) -> ModuleOutput | None:
    tensors = layout.measured.tensors
    floating = [
        item
        for item in layout.alive[position]
        if isinstance(item, Value) and item.name in tensors and tensors[item.name].dtype.is_floating_point
    ]
    if len(floating) != 1 or (made := layout.defined(floating[0]) - 1) < 0:
        return None
    name = layout.operations[made].scope
    inside = [at for at, one in enumerate(layout.operations) if one.scope == name or one.scope.startswith(f"{name}.")]
    if not name or inside[-1] != made:
        return None
    shape = layout.converted.shapes[floating[0].name]
    convolves = any(layout.operations[at].target.startswith(_CONVOLUTION) for at in inside)
    if len(shape) < 2 or (len(shape) == 3 and convolves):  # a sequence of features, or the channels of one
        return None
    dim = 1 if len(shape) > 3 else -1
    features = shape[dim]
    return ModuleOutput(name, features, dim) if isinstance(features, int) else None
