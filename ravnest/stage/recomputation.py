"""Forgetting a forward's activations, and running it again for its backward: activation checkpointing of a whole stage.

Decides what has to be as it was: the weights, the buffers that the forward read, and the stream of random numbers.
Then the second forward computes the very numbers of the first. It learns nothing: buffers are put back afterwards, so
that batch-norm's statistics are updated once for each micro-batch. Knows no order and no message.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from torch import Tensor

from ravnest.splitting import StageModule, StageProgram
from ravnest.training.weights import ParameterSet


@dataclass
class Forgotten:
    """What is kept of a micro-batch whose forward will be run again."""

    inputs: tuple[Tensor, ...]
    """Leaves."""
    target: Tensor
    """Empty but at the last stage."""
    parameters: ParameterSet
    buffers: Mapping[str, Tensor]
    """As the forward found them, those that it may have written."""


class Replayer:
    """Of one stage."""

    def __init__(self, program: StageProgram, module: StageModule) -> None:
        self._module = module
        # Operators do not declare all that they write (batch-norm's statistics), but what they write is saved.
        names = {spec.name for spec in program.buffers if spec.persistent} | {*program.changed}
        self._learning = tuple(spec.name for spec in program.buffers if spec.name in names)

    def buffers(self) -> dict[str, Tensor]:
        """Copies of the buffers that a forward may write, to be called before it."""
        every = dict(self._module.named_buffers())
        return {name: every[name].clone() for name in self._learning}

    @contextmanager
    def as_it_was(self, forgotten: Forgotten, now: ParameterSet) -> Iterator[None]:
        """Run the forward again inside. `now`: the parameters that the module has, and gets back. Once: what the second
        forward writes, it writes into `forgotten.buffers`."""
        module = self._module
        every = dict(module.named_buffers())
        changed = [name for name, then in forgotten.parameters.items() if then is not now[name]]
        try:
            for name in changed:
                module.set_parameter(name, forgotten.parameters[name])
            for name, tensor in forgotten.buffers.items():
                module.set_buffer(name, tensor)
            yield
        finally:
            for name in changed:
                module.set_parameter(name, now[name])
            for name in forgotten.buffers:
                module.set_buffer(name, every[name])
