"""What a job's optimizer keeps for the weights: to the byte where that follows from their shapes, else by a ratio.

In: the `optimizer` section of a job, and the names and shapes of parameters. Out: bytes. The optimizer is asked itself,
by a step on a small parameter with as many dimensions: each tensor of its state has one number, or for each dimension
of the parameter either its length or 1. That is so for all of torch's (Adafactor's factored moments have 1 where they
are summed) and for LAMB. SOAP, whose squares depend on which sides are rotated, makes a step on each shape itself,
without values. For others the ratio counts.
"""

from collections.abc import Sequence
from functools import cache
from math import prod

import torch

from ravnest.splitting.program import TensorSpec, is_narrow
from ravnest.training.optimizer import OptimizerConfig, build_optimizer, partition

_LENGTHS = (7, 11, 13, 17, 19, 23)
"""Of the small parameter's dimensions: each is another number, and none is 1."""

Kept = tuple[int, tuple[bool, ...]]
"""Of a tensor of the state: the bytes of a number, and which of the parameter's dimensions it has."""


def state_bytes(config: OptimizerConfig, specs: Sequence[TensorSpec]) -> int | None:
    """Bytes of the optimizer's state for these parameters, of which the trained ones count, after their first update.

    Returns None where that does not follow from their shapes.
    """
    shapes = {spec.name: spec for spec in specs if spec.requires_grad}
    total = 0
    for group, names in partition(config, shapes):
        for name in names:
            spec = shapes[name]
            section, dtype = group.model_dump_json(), torch.float32 if is_narrow(spec.dtype) else spec.dtype
            if group.name.lower() == "soap":
                total += _of_shape(section, tuple(spec.shape), dtype)
                continue
            kept = _kept(section, len(spec.shape), dtype)
            if kept is None:
                return None
            total += sum(
                size * prod(length for length, has in zip(spec.shape, dims, strict=True) if has) for size, dims in kept
            )
    return total


@cache
def _of_shape(section: str, shape: tuple[int, ...], dtype: torch.dtype) -> int:
    """Bytes that the optimizer of this section keeps for a parameter: it makes a step on torch's meta device."""
    config = OptimizerConfig.model_validate_json(section)
    return sum(state.nbytes for state in _states_after_a_step(config, torch.zeros(shape, dtype=dtype, device="meta")))


@cache
def _kept(section: str, dimensions: int, dtype: torch.dtype) -> tuple[Kept, ...] | None:
    """The tensors that the optimizer of this section keeps for a parameter; None where shapes do not tell."""
    if dimensions > len(_LENGTHS):
        return None
    config = OptimizerConfig.model_validate_json(section)
    shape = _LENGTHS[:dimensions]
    found: list[Kept] = []
    for tensor in _states_after_a_step(config, torch.zeros(shape, dtype=dtype)):
        if tensor.numel() == 1:
            found.append((tensor.element_size(), (False,) * dimensions))
        elif tensor.dim() == dimensions and all(a in (1, b) for a, b in zip(tensor.shape, shape, strict=True)):
            found.append((tensor.element_size(), tuple(length > 1 for length in tensor.shape)))
        else:
            return None
    return tuple(found)


def _states_after_a_step(config: OptimizerConfig, values: torch.Tensor) -> list[torch.Tensor]:
    probe = torch.nn.Parameter(values)
    optimizer = build_optimizer(config, [("probe", probe)])
    probe.grad = torch.ones_like(probe)
    optimizer.step()
    return [value for value in optimizer.state[probe].values() if isinstance(value, torch.Tensor)]


def state_bytes_per_parameter_byte(config: OptimizerConfig) -> float:
    """Bytes of optimizer state for each byte of parameters, found by one step on a matrix of 8 × 32. Of several groups,
    the one with most counts.

    Scalars and factored moments (Adafactor's) are negligible and left out: `state_bytes` has them. SOAP's square
    matrices are not; among the matrices of ordinary blocks, they are largest at this ratio of sides.
    """
    if config.groups:
        every = [*map(config.of_group, config.groups), config.model_copy(update={"groups": ()})]
        return max(map(state_bytes_per_parameter_byte, every))
    values = torch.zeros(8, 32)
    states = _states_after_a_step(config, values)
    return sum(state.nbytes for state in states if state.numel() >= 64) / values.nbytes
