"""Imitating a slower node: each forward and backward is padded to the time that the node would take for it.

Decides nothing about training. A computation that takes longer than the node would is counted as late, since then the
imitation is not faithful.
"""

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from torch import Tensor

from ravnest.runtime.batches import BatchSource
from ravnest.runtime.compute import StageCompute
from ravnest.runtime.segments import StageSegments
from ravnest.runtime.setup import StageSetup
from ravnest.splitting import StageModule
from ravnest.training.losses import Loss, Metric
from ravnest.training.weights import VersionedWeights

T = TypeVar("T")
_BACKWARD_OVER_FORWARD = 2.0
_INPUT_GRADIENTS_OVER_FORWARD = 1.0


class Pacer:
    """Pads work to a stated time. `sleep` and `now` are the clock's two sides."""

    def __init__(
        self, sleep: Callable[[float], None] = time.sleep, now: Callable[[], float] = time.perf_counter
    ) -> None:
        self._sleep = sleep
        self._now = now
        self.padded_s = 0.0
        self.late_s = 0.0

    def run(self, target_s: float, work: Callable[[], T]) -> T:
        """Do `work`, and return no sooner than `target_s` after it began."""
        began_s = self._now()
        result = work()
        left_s = target_s - (self._now() - began_s)
        if left_s > 0:
            self._sleep(left_s)
            self.padded_s += left_s
        else:
            self.late_s -= left_s
        return result


class PacedCompute(StageCompute):
    """A StageCompute whose forwards and backwards take as long as those of `setup.pace`. Updates are not padded."""

    def __init__(
        self,
        setup: StageSetup,
        module: StageModule,
        weights: VersionedWeights,
        segments: StageSegments,
        source: BatchSource | None,
        loss: Loss,
        metrics: Sequence[Metric],
        pacer: Pacer | None = None,
    ) -> None:
        super().__init__(setup, module, weights, segments, source, loss, metrics)
        pace = setup.pace
        assert pace is not None
        self.pacer = pacer or Pacer()
        self._forward_s = pace.forward_flops * setup.job.micro_batch / pace.flops_per_s

    def forward(self, micro_batch: int, received: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        plain = super().forward
        return self.pacer.run(self._forward_s, lambda: plain(micro_batch, received))

    def backward(
        self, micro_batch: int, received: tuple[Tensor, ...], ends_group: bool
    ) -> tuple[tuple[Tensor, ...], float | None]:
        plain = super().backward
        target_s = (_BACKWARD_OVER_FORWARD + self._setup.recomputes) * self._forward_s
        return self.pacer.run(target_s, lambda: plain(micro_batch, received, ends_group))

    def input_gradients(self, micro_batch: int, received: tuple[Tensor, ...]) -> tuple[tuple[Tensor, ...], None]:
        plain = super().input_gradients
        target_s = _INPUT_GRADIENTS_OVER_FORWARD * self._forward_s
        return self.pacer.run(target_s, lambda: plain(micro_batch, received))

    def weight_gradients(self, micro_batch: int) -> None:
        plain = super().weight_gradients
        target_s = (_BACKWARD_OVER_FORWARD - _INPUT_GRADIENTS_OVER_FORWARD) * self._forward_s
        self.pacer.run(target_s, lambda: plain(micro_batch))
