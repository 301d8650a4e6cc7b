"""Trains a module that calls remote experts with several batches at once, so that nobody waits for the experts' delay.

In: a module, an optimizer over its parameters, and batches. Out: the loss of each batch. Each of `in_flight` threads
has a copy of the module. A batch is computed with the weights of the moment at which it began, and its gradient is
applied to the weights of the moment at which it ends. So gradients are stale by up to `in_flight` − 1 updates or more,
when some batches take longer; that is counted, and beyond `max_staleness` a gradient is dropped and counted.

The thread that calls `run` alone owns the module's weights and the optimizer, and so may average the weights with
others between two updates: pass `average`, such as `Group.average` of ring_allreduce.
"""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ravnest.errors import ExpertsUnavailable, InvalidInput, RunFailed

BATCH_S = 600.0
"""A batch that takes longer than all its requests' deadlines together can is a defect: then `run` raises."""

Loss = Callable[[nn.Module, object], Tensor]
"""The loss of a module on a batch, a tensor of one number."""


@dataclass
class TrainerFigures:
    """What was trained."""

    updates: int = 0
    staleness: Counter[int] = field(default_factory=Counter)
    """Updates by how many others were made since their batch began."""
    too_stale: int = 0
    failed: int = 0
    """Batches for which too few experts answered."""
    averages: int = 0


@dataclass(frozen=True)
class _Done:
    loss: float
    gradients: tuple[Tensor | None, ...]


class Trainer:
    """Trains one module."""

    def __init__(
        self,
        module: nn.Module,
        optimizer: Optimizer,
        loss: Loss,
        *,
        in_flight: int = 4,
        max_staleness: int = 64,
        most_failed: int = 10,
        average: Callable[[list[Tensor]], object] | None = None,
        average_every: int = 16,
    ) -> None:
        """
        Arguments:
            module: all its parameters that are trained are the optimizer's. It has no buffers that a forward changes.
            loss: is called in other threads, with a copy of the module and a batch.
            in_flight: batches that are computed at a time.
            max_staleness: a gradient is dropped when more updates were made since its batch began.
            most_failed: so many batches in a row for which too few experts answered end the run.
            average: replaces the weights by their mean over all trainers. It is called every `average_every` updates.
        """
        for key, value, least in (
            ("in_flight", in_flight, 1),
            ("max_staleness", max_staleness, 0),
            ("most_failed", most_failed, 1),
            ("average_every", average_every, 1),
        ):
            if value < least:
                raise InvalidInput(f"expected {least} or more, not {value}", key=key)
        self.module, self.optimizer, self._loss = module, optimizer, loss
        self._parameters = [one for one in module.parameters() if one.requires_grad]
        self._max_staleness, self._most_failed = max_staleness, most_failed
        self._average, self._average_every = average, average_every
        self._spare = [copy.deepcopy(module) for _ in range(in_flight)]
        self.figures = TrainerFigures()

    def run(self, batches: Iterable[object]) -> Iterator[float]:
        """Train on all batches; yields the loss of each whose gradient was applied, in the order in which they end.

        Raises ExpertsUnavailable after too many batches in a row without answers, RunFailed for a loss that is not
        finite, and what `average` and the loss raise. Batches under way are then dropped.
        """
        in_order = iter(batches)
        under_way: dict[Future[_Done], tuple[nn.Module, int]] = {}
        failed_in_a_row, left = 0, True
        pool = ThreadPoolExecutor(len(self._spare), thread_name_prefix="batch")
        try:
            while left or under_way:
                while left and self._spare:
                    batch = next(in_order, _END)
                    if batch is _END:
                        left = False
                        break
                    replica = self._spare.pop()
                    self._hand_weights_to(replica)
                    future = pool.submit(self._compute, replica, batch)
                    under_way[future] = replica, self.figures.updates
                done, _ = wait(under_way, BATCH_S, FIRST_COMPLETED)
                if under_way and not done:
                    raise RunFailed(f"no batch has ended within {BATCH_S:g} s")
                for future in done:
                    replica, begun = under_way.pop(future)
                    self._spare.append(replica)
                    try:
                        result = future.result()
                    except ExpertsUnavailable:
                        self.figures.failed += 1
                        failed_in_a_row += 1
                        if failed_in_a_row >= self._most_failed:
                            raise
                        continue
                    failed_in_a_row = 0
                    if self._apply(result, begun):
                        yield result.loss
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
            self._spare += [replica for replica, _ in under_way.values()]

    def _compute(self, replica: nn.Module, batch: object) -> _Done:
        parameters = [one for one in replica.parameters() if one.requires_grad]
        loss = self._loss(replica, batch)
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        return _Done(float(loss.detach()), gradients)

    def _apply(self, done: _Done, begun: int) -> bool:
        """Make the update of a batch that began after `begun` updates; False when its gradient is too stale."""
        if not math.isfinite(done.loss):
            raise RunFailed(f"the loss is {done.loss}: training has diverged")
        staleness = self.figures.updates - begun
        if staleness > self._max_staleness:
            self.figures.too_stale += 1
            return False
        for parameter, gradient in zip(self._parameters, done.gradients, strict=True):
            parameter.grad = gradient
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.figures.updates += 1
        self.figures.staleness[staleness] += 1
        if self._average is not None and self.figures.updates % self._average_every == 0:
            self._average([one.data for one in self._parameters])
            self.figures.averages += 1
        return True

    @torch.no_grad()
    def _hand_weights_to(self, replica: nn.Module) -> None:
        replica.train(self.module.training)
        for own, theirs in zip(self.module.state_dict().values(), replica.state_dict().values(), strict=True):
            theirs.copy_(own)


_END = object()
