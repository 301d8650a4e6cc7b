"""Two operators of torch that ask experts and teach them, with their own autograd, so that a captured graph has them.

torch.export follows a model's operations and not its Python, so a call over the network has to be one operation. A
stage of a run imports this module by its name, which its program gives, and finds who asks in askers.py.

In: samples, the gate's numbers, the name of who asks, and what a caller has to know of the grid, as text. Out: outputs,
and who gave them (`asked`, batch_calls.py). Samples may have any floating dtype and lie on any device: experts are
called in float32, from the CPU.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ravnest.experts.askers import asker_of, config_from, given_again, keep_answer, name_in_graph
from ravnest.experts.batch_calls import ask, teach


@torch.library.custom_op("ravnest::ask_experts", mutates_args=())
def ask_experts(
    samples: Tensor,
    numbers: Tensor,
    asker: str,
    config: str,
    k: int,
    k_min: int,
    backward_k_min: int,
    width: int,
    training: bool,
) -> tuple[Tensor, Tensor]:
    """The outputs of the k best experts of each sample, and who gave them. Raises as `asker_of` and `ask` do."""
    again = given_again()
    if again is not None:
        return again
    who, here = asker_of(asker, config), (_here(samples), _here(numbers))
    with who.figures.waiting():
        outputs, asked = ask(who, *here, k=k, k_min=k_min, width=width, training=training)
    outputs, asked = outputs.to(samples.device), asked.to(samples.device)
    keep_answer(outputs, asked)
    return outputs, asked


@torch.library.custom_op("ravnest::teach_experts", mutates_args=())
def teach_experts(
    samples: Tensor, gradient: Tensor, asked: Tensor, asker: str, config: str, backward_k_min: int
) -> Tensor:
    """The gradient of the samples; the experts learn from that of their outputs. Raises as `teach` does."""
    who, here = asker_of(asker, config), (_here(samples), _here(gradient), asked.cpu())
    with who.figures.waiting():
        found = teach(who, *here, backward_k_min=backward_k_min)
    return found.to(samples)


@ask_experts.register_fake
def _(
    samples: Tensor,
    numbers: Tensor,
    asker: str,
    config: str,
    k: int,
    k_min: int,
    backward_k_min: int,
    width: int,
    training: bool,
) -> tuple[Tensor, Tensor]:
    grid = config_from(config)
    outputs = samples.new_empty((samples.shape[0], k, *grid.out_shape), dtype=torch.float32)
    return outputs, samples.new_empty((samples.shape[0], k, len(grid.grid) + 2), dtype=torch.int64)


@teach_experts.register_fake
def _(samples: Tensor, gradient: Tensor, asked: Tensor, asker: str, config: str, backward_k_min: int) -> Tensor:
    return torch.empty_like(samples)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    samples, _, asker, ctx.config, _, _, ctx.backward_k_min, _, _ = inputs
    ctx.asker = name_in_graph(asker)
    ctx.save_for_backward(samples, output[1])


def _backward(ctx: Any, gradient: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
    """The experts are taught even where nothing below the layer learns: then the numbers alone ask for a gradient,
    and theirs is none, since who is chosen does not change a little with them."""
    samples, asked = ctx.saved_tensors
    found = teach_experts(samples, gradient.contiguous(), asked, ctx.asker, ctx.config, ctx.backward_k_min)
    return (found if ctx.needs_input_grad[0] else None), *[None] * 8


ask_experts.register_autograd(_backward, setup_context=_keep)


def _here(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", torch.float32)
