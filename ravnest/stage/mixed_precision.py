"""Computing in bfloat16 or float16 where it is safe: torch's autocast around a stage's forward, and float16's scaling.

A weight is cast once for each version, not once for each micro-batch, since what is cast stays alive with every graph:
autocast's cache is kept open until the weights change. Gradients cross cuts at their true size, and each stage scales
its own backward: one that overflows is run again at half the scale, so that no stage ever skips an update, and no stage
has to ask the others whether they do.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from ravnest.stage.backward import MicroBatchGraph
from ravnest.training.precision import LossScale, Precision

DTYPES: dict[Precision, torch.dtype] = {"bfloat16": torch.bfloat16, "float16": torch.float16}


class MixedPrecision:
    """One stage's. All calls come from the compute thread."""

    def __init__(self, precision: Precision, device: str) -> None:
        self._dtype = DTYPES.get(precision)
        self._device_type = torch.device(device).type
        self._is_open = False
        self.scale = LossScale() if precision == "float16" else None
        """None where gradients need none."""

    @contextmanager
    def forward(self) -> Iterator[None]:
        if self._dtype is None:
            yield
            return
        if not self._is_open:
            torch.autocast_increment_nesting()  # the cache is emptied when the outermost context is left
            self._is_open = True
        # What an evaluation casts has no gradient: torch before 2.11 would give it to the next training forward.
        with torch.autocast(self._device_type, self._dtype, cache_enabled=torch.is_grad_enabled()):
            yield

    def weights_changed(self) -> None:
        """What was cast is out of date."""
        if self._is_open:
            torch.autocast_decrement_nesting()
            torch.clear_autocast_cache()
            self._is_open = False


def scaled_backward(
    graph: MicroBatchGraph,
    received: Sequence[Tensor],
    scale: LossScale,
    run: Callable[[MicroBatchGraph, Sequence[Tensor]], None],
) -> None:
    """A whole backward by `run` (which keeps the graph), at a scale at which nothing overflows; the gradients that it
    leaves on parameters and inputs are those of this micro-batch alone, at their true size.

    Raises RunFailed where there is no such scale.
    """
    leaves = [*graph.parameters.values(), *(tensor for tensor in graph.inputs if tensor.requires_grad)]
    while True:
        for leaf in leaves:
            leaf.grad = None
        graph.scale = scale.value
        run(graph, received)
        gradients = [leaf.grad for leaf in leaves if leaf.grad is not None]
        if not gradients or bool(torch.stack(torch._foreach_norm(gradients)).isfinite().all()):
            break
        scale.overflowed()
    scale.was_fine()
    if gradients:
        torch._foreach_mul_(gradients, 1.0 / graph.scale)
