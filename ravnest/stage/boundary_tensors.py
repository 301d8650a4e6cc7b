"""The tensors that cross a stage's cuts: the form in which they travel, and the check of what arrives. Pure.

In: tensors of a stage's program, or of a message. Out: the tensors of a message, or those that the program takes.

The job's `wire` gives the form. It applies to tensors of float32 that need a gradient, and to gradients, and to those
of 16 bits where the form is shorter still. Masks, integers and tensors that no gradient reaches travel as they are,
because their values are often beyond a short form (an attention mask adds -3e38). float16 is sent as parts of the
tensor's largest number, so that gradients neither overflow nor vanish. Held-out batches travel as they are, so that
evaluations are of the weights alone.

Nothing from the network reaches a computation before `expected_sender` and `check_tensors` have passed it. A mismatch
means a peer with another plan, or a lie: the run ends with both named.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from ravnest.errors import RunFailed, WrongMessage
from ravnest.splitting import ValueSpec
from ravnest.splitting.program import HALVES
from ravnest.stage import epoch_messages as em
from ravnest.stage import messages as m
from ravnest.stage import state_messages as sm
from ravnest.stage.setup import StageSetup
from ravnest.training.precision import ring_wire
from ring_allreduce import InvalidInput
from ring_allreduce.ring import Wire, decode, encode
from ring_allreduce.transport import Delivery, Message

T = TypeVar("T")
Tensors = tuple[Tensor, ...]

_SHORT: Mapping[Wire, torch.dtype] = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "int8": torch.int8,
    "int4": torch.uint8,
}
_SCALES: Mapping[Wire, tuple[torch.dtype, tuple[int | None, ...]]] = {
    "float16": (torch.float32, ()),
    "int8": (torch.float32, (None,)),
    "int4": (torch.bfloat16, (None,)),
}
"""The dtypes and shapes of the scales that travel beside the values."""


class Crossing:
    """One direction of one cut. Tensors of `specs` cross it, which `sender` sends; errors call them `what`."""

    def __init__(self, specs: Sequence[ValueSpec], wire: Wire, sender: str, what: str) -> None:
        self._specs = tuple(specs)
        self._wires = [_wire_of(spec, wire) for spec in specs]
        self._title = f"{sender} sent {what}"
        self.travelling = tuple(
            form for spec, wire in zip(specs, self._wires, strict=True) for form in _forms(spec, wire)
        )
        """The specs of the tensors that a message must bring, in order."""

    def pack(self, tensors: Sequence[Tensor]) -> Tensors:
        """The tensors of a message. A tensor that travels as it is, is not copied."""
        packed: list[Tensor] = []
        for tensor, wire in zip(tensors, self._wires, strict=True):
            packed += _packed(tensor, wire)
        return tuple(packed)

    def unpack(self, tensors: Sequence[Tensor]) -> Tensors:
        """The tensors that `pack` was given, as exactly as their form keeps them. `tensors`: as `travelling` lists
        them.

        Raises RunFailed where they hold numbers that are not finite, or scales for another number of blocks.
        """
        left = iter(tensors)
        found = []
        for spec, wire in zip(self._specs, self._wires, strict=True):
            parts = [next(left) for _ in _forms(spec, wire)]
            try:
                found.append(_unpacked(parts, wire, spec))
            except InvalidInput as error:
                raise RunFailed(f"{self._title} whose {spec.name!r} cannot be read: {error}; diverged?") from error
        return tuple(found)


class StageCrossings:
    """Both directions of both cuts of a stage. A first stage has no cut before it, and a last one none behind it."""

    def __init__(self, setup: StageSetup) -> None:
        wire, own = setup.job.wire, setup.name
        before = () if setup.is_first else setup.program.inputs
        behind = () if setup.is_last else setup.program.outputs
        previous, following = setup.neighbour(-1), setup.neighbour(+1)
        activations, gradients = ring_wire(wire.activations), ring_wire(wire.gradients)
        self.activations_in = Crossing(before, activations, previous, "activations")
        self.activations_out = Crossing(behind, activations, own, "activations")
        self.gradients_in = Crossing(_needing(behind), gradients, following, "gradients")
        self.gradients_out = Crossing(_needing(before), gradients, own, "gradients")
        self.held_out = Crossing(before, "exact", previous, "held-out activations")

    def forward(self, compute: Callable[[Tensors], Tensors], received: Tensors) -> Tensors:
        """Unpack what a message brought, run `compute` on it, and pack what the next message is to bring."""
        return self.activations_out.pack(compute(self.activations_in.unpack(received)))

    def backward(self, compute: Callable[[Tensors], tuple[Tensors, T]], received: Tensors) -> tuple[Tensors, T]:
        """Do the same as `forward` for gradients. What `compute` returns beside the gradients is not changed."""
        gradients, beside = compute(self.gradients_in.unpack(received))
        return self.gradients_out.pack(gradients), beside


def expected_sender(setup: StageSetup, message: Message) -> str | None:
    """The only peer that may send a message of this kind to this stage; None where nobody may."""
    match message:
        case m.Activation() | m.GlobalNorm() | m.EvaluationActivation() | m.TiedWeights():
            return None if setup.is_first else setup.neighbour(-1)
        case m.Gradient() | m.TiedGradients():
            return None if setup.is_last else setup.neighbour(+1)
        case m.EvaluationCredit():
            return setup.neighbour(setup.place.stages - 1 - setup.index) if setup.is_first else None
        case (
            m.Alive()
            | m.Go()
            | m.RoundOpenedMessage()
            | m.RoundCommittedMessage()
            | em.RingsReformedMessage()
            | em.RoundsResumedMessage()
            | em.SendState()
            | em.StandBy()
            | em.TakeOver()
            | sm.StateWanted()
            | m.Drain()
            | m.FinishRounds()
            | m.Evaluate()
            | m.Stop()
        ):
            return m.DRIVER
        case _:
            return None


def check_tensors(delivery: Delivery, specs: Sequence[ValueSpec]) -> None:
    """Raises WrongMessage unless the tensors match `specs` in number, dtype and shape.

    A size of None varies with the batch, and any positive size passes.
    """
    kind = type(delivery.message).__name__
    if len(delivery.tensors) != len(specs):
        raise WrongMessage(delivery.sender, f"sent {kind} with {len(delivery.tensors)} tensors, expected {len(specs)}")
    for tensor, spec in zip(delivery.tensors, specs, strict=True):
        fits = tensor.dim() == len(spec.shape) and all(
            size == wanted or (wanted is None and size > 0)
            for size, wanted in zip(tensor.shape, spec.shape, strict=True)
        )
        if tensor.dtype != spec.dtype or not fits:
            found = f"{spec.name} as {tensor.dtype} {tuple(tensor.shape)}"
            raise WrongMessage(delivery.sender, f"sent {kind} with {found}, expected {spec.dtype} {spec.shape}")


def _needing(specs: Sequence[ValueSpec]) -> tuple[ValueSpec, ...]:
    return tuple(spec for spec in specs if spec.needs_gradient)


def _wire_of(spec: ValueSpec, wire: Wire) -> Wire:
    """The form in which a tensor of `spec` travels.

    A byte of int4 has two numbers of one row, so that rows of a changing length travel as int8.
    """
    takes = spec.dtype == torch.float32 or (spec.dtype in HALVES and wire in ("int8", "int4"))
    if not spec.needs_gradient or not takes:
        return "exact"
    return "int8" if wire == "int4" and (not spec.shape or spec.shape[-1] is None) else wire


def _forms(spec: ValueSpec, wire: Wire) -> list[ValueSpec]:
    """The specs of the tensors in which a tensor of `spec` travels: its values, and their scales."""
    if wire == "exact":
        return [spec]
    row = spec.shape[-1] if wire == "int4" else None
    shape = spec.shape if row is None else (*spec.shape[:-1], -(-row // 2))
    values = replace(spec, dtype=_SHORT[wire], shape=shape, needs_gradient=False)
    scales = [_SCALES[wire]] if wire in _SCALES else []
    return [values, *(ValueSpec(f"{spec.name}'s scale", dtype, shape, False) for dtype, shape in scales)]


def _packed(tensor: Tensor, wire: Wire) -> list[Tensor]:
    if wire == "exact":
        return [tensor]
    tensor = tensor.detach().to(torch.float32)
    if wire == "int4" and tensor.shape[-1] % 2:
        tensor = pad(tensor, (0, 1))
    flat = tensor.reshape(-1)
    scale = _power_of_two(flat) if wire == "float16" else 1.0
    values, *scales = encode(wire, flat, scale, None)
    if wire == "float16":
        scales = [torch.tensor(scale)]
    shape = (*tensor.shape[:-1], tensor.shape[-1] // 2) if wire == "int4" else tensor.shape
    return [values.view(shape), *scales]


def _unpacked(parts: Sequence[Tensor], wire: Wire, spec: ValueSpec) -> Tensor:
    values, *scales = parts
    if wire == "exact":
        return values
    scale = scales.pop().item() if wire == "float16" else 1.0
    shape = (*values.shape[:-1], 2 * values.shape[-1]) if wire == "int4" else values.shape
    tensor = decode(wire, [values.reshape(-1), *scales], math.prod(shape), scale, torch.float32).view(shape)
    if wire == "int4" and tensor.shape[-1] != spec.shape[-1]:
        tensor = tensor[..., :-1].contiguous()
    return tensor.to(spec.dtype)


def _power_of_two(flat: Tensor) -> float:
    """The power of two that is at least the largest magnitude. Dividing by it loses nothing."""
    if not flat.numel():
        return 1.0
    largest = max(abs(limit.item()) for limit in torch.aminmax(flat))
    return math.ldexp(1.0, math.frexp(largest)[1]) if math.isfinite(largest) else 1.0
