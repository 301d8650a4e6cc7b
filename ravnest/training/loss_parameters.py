"""A loss with parameters of its own (ArcFace, centre loss): its weights are part of the last stage.

In: a job's loss. Out: what its module brings to the last stage: specs and values of its parameters and saved buffers,
under their own names behind the prefix `loss.`. So they are trained, averaged, saved and sent like those of the model.
A module without parameters stays outside: each process makes it from the job, and nothing of it is saved.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from ravnest.errors import InvalidInput
from ravnest.splitting import TensorSpec
from ravnest.splitting.program import LOSS_MODULE
from ravnest.training.losses import Loss

LOSS_PREFIX = f"{LOSS_MODULE}."


def module_with_parameters(loss: Loss | None) -> nn.Module | None:
    """The loss's module where it has parameters, and so belongs to the last stage; None where it does not.

    Raises InvalidInput at `loss` for parameters that a stage cannot hold: lazy ones, and ones with two names.
    """
    module = None if loss is None else loss.module
    if module is None or not any(True for _ in module.parameters()):
        return None
    names: dict[int, str] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if is_lazy(parameter):
            raise InvalidInput(f"its parameter {name!r} has no shape yet: give the module its sizes", key="loss")
        if id(parameter) in names:
            message = f"its parameters {names[id(parameter)]!r} and {name!r} are one: a loss has to name each once"
            raise InvalidInput(message, key="loss")
        names[id(parameter)] = name
    return module


def loss_parameters(loss: Loss | None) -> dict[str, nn.Parameter]:
    """The parameters of the loss, by their names in the last stage."""
    module = module_with_parameters(loss)
    return {} if module is None else {f"{LOSS_PREFIX}{name}": p for name, p in module.named_parameters()}


def loss_weights(loss: Loss | None) -> dict[str, Tensor]:
    """The values of what the loss brings to the last stage, by name; empty where it brings nothing."""
    module = module_with_parameters(loss)
    return {} if module is None else {name: tensor.detach() for name, tensor, _ in _state(module)}


def loss_specs(loss: Loss | None) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """What the loss brings to the last stage: parameters and buffers."""
    module = module_with_parameters(loss)
    parameters: list[TensorSpec] = []
    buffers: list[TensorSpec] = []
    for name, tensor, is_parameter in () if module is None else _state(module):
        spec = TensorSpec(name, tuple(tensor.shape), tensor.dtype, is_parameter and tensor.requires_grad)
        (parameters if is_parameter else buffers).append(spec)
    return tuple(parameters), tuple(buffers)


def _state(module: nn.Module) -> Iterator[tuple[str, Tensor, bool]]:
    """Name, value, and whether it is a parameter, of all that the module saves."""
    parameters = {name for name, _ in module.named_parameters()}
    for name, tensor in module.state_dict(keep_vars=True).items():
        if isinstance(tensor, torch.Tensor):
            yield f"{LOSS_PREFIX}{name}", tensor, name in parameters
