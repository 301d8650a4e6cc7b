"""A stage as a torch module: the weights of its span under their original names, and one function for each mode.

In: a StageProgram and values for its weights. Out: a module whose `train()` and `eval()` choose the function that
`forward` runs. It knows nothing of micro-batches, versions or messages.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ravnest.errors import InvalidInput
from ravnest.splitting.codegen import compile_span, generate
from ravnest.splitting.program import StageProgram, TensorSpec


class StageModule(nn.Module):
    """A module that runs a StageProgram. The keys of its `state_dict()` are a subset of the original model's."""

    def __init__(
        self,
        program: StageProgram,
        weights: Mapping[str, Tensor],
        device: torch.device | str = "cpu",
        *,
        copy: bool = True,
    ) -> None:
        """Make the stage of `program` on `device`.

        weights: at least the span's parameters and buffers, by original name; others are ignored.
        copy: False lets the stage own and change the given tensors where they are on `device` already.
        Raises InvalidInput naming a weight that is missing or has another shape or dtype.
        """
        super().__init__()
        device = torch.device(device)
        self.program = program
        self.output_needs_gradient = tuple(spec.needs_gradient for spec in program.outputs)
        self._device = device
        # (container, leaf name) of every weight, in the order in which the generated code indexes them.
        self._slots: list[tuple[nn.Module, str]] = []
        self._owners: dict[str, tuple[nn.Module, str]] = {}
        for spec in (*program.parameters, *program.borrowed):
            tensor = _checked(spec, weights, device, copy=copy)
            owner, leaf = self._place(spec.name)
            owner._parameters[leaf] = nn.Parameter(tensor, requires_grad=spec.requires_grad)
        for spec in program.buffers:
            tensor = _checked(spec, weights, device, copy=copy)
            owner, leaf = self._place(spec.name)
            owner._buffers[leaf] = tensor
            if not spec.persistent:
                owner._non_persistent_buffers_set.add(leaf)
        self._constants = [tensor.to(device) for _, tensor in program.constants]
        names = [*self._owners, *(name for name, _ in program.constants)]
        self._functions = {}
        for training, code in ((True, program.train), (False, program.evaluate)):
            source = generate(code, program.inputs, program.outputs, names, outputs_travel=program.outputs_travel)
            mode = "train" if training else "eval"
            self._functions[training] = compile_span(source, code, f"units {program.start}-{program.end} {mode}")

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Run the span.

        `inputs` are as `program.inputs` lists them: contiguous, and leaves that require a gradient where
        `needs_gradient` says so. Returns a tuple as `program.outputs` lists it, in which a value that only passes
        through is the input itself. Raises InvalidInput for another number of inputs.
        """
        if len(inputs) != len(self.program.inputs):
            wanted = ", ".join(spec.name for spec in self.program.inputs)
            raise InvalidInput(f"the stage takes {len(self.program.inputs)} tensors ({wanted}), got {len(inputs)}")
        tensors: list[Any] = [
            owner._parameters[leaf] if leaf in owner._parameters else owner._buffers[leaf]
            for owner, leaf in self._slots
        ]
        return self._functions[self.training](tensors + self._constants, self._device, inputs)

    def set_parameter(self, name: str, parameter: nn.Parameter) -> None:
        """Replace a parameter: the next forward uses the new one, graphs already recorded keep the old one.

        Raises InvalidInput where the stage has no such parameter, or it has another shape.
        """
        owner, leaf = self._owners.get(name, (self, ""))
        old = owner._parameters.get(leaf)
        if old is None:
            raise InvalidInput(f"units {self.program.start}-{self.program.end} hold no parameter {name!r}")
        if old.shape != parameter.shape:
            raise InvalidInput(f"{name!r} has shape {tuple(old.shape)}, not {tuple(parameter.shape)}")
        owner._parameters[leaf] = parameter

    def set_buffer(self, name: str, tensor: Tensor) -> None:
        """Replace a buffer: the next forward uses the new one, graphs already recorded keep the old one.

        Raises InvalidInput where the stage has no such buffer, or it has another shape or dtype.
        """
        owner, leaf = self._owners.get(name, (self, ""))
        old = owner._buffers.get(leaf)
        if old is None:
            raise InvalidInput(f"units {self.program.start}-{self.program.end} hold no buffer {name!r}")
        if old.shape != tensor.shape or old.dtype != tensor.dtype:
            raise InvalidInput(f"{name!r} is {old.dtype} {tuple(old.shape)}, not {tensor.dtype} {tuple(tensor.shape)}")
        owner._buffers[leaf] = tensor

    def _place(self, name: str) -> tuple[nn.Module, str]:
        # Written into the dictionaries, since a submodule of the original may be called like an attribute here.
        *path, leaf = name.split(".")
        owner: nn.Module = self
        for part in path:
            child = owner._modules.get(part)
            if child is None:
                child = nn.Module()
                owner._modules[part] = child
            owner = child
        self._owners[name] = (owner, leaf)
        self._slots.append((owner, leaf))
        return owner, leaf


def _checked(spec: TensorSpec, weights: Mapping[str, Tensor], device: torch.device, *, copy: bool) -> Tensor:
    tensor = weights.get(spec.name)
    if tensor is None:
        raise InvalidInput(f"the initial weights lack {spec.name!r}", key=spec.name)
    if tuple(tensor.shape) != spec.shape or tensor.dtype != spec.dtype:
        raise InvalidInput(
            f"expected {spec.dtype} of shape {spec.shape}, got {tensor.dtype} of shape {tuple(tensor.shape)}",
            key=spec.name,
        )
    moved = tensor.detach().to(device)
    return moved.clone() if copy and moved.data_ptr() == tensor.data_ptr() else moved
