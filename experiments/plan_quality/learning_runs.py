"""Trainings that tell what staleness, rounds and clusters cost in learning: held-out losses by the samples of a fleet.

Each yields a curve: updates of the whole fleet so far, and the held-out loss of each seed then. `stale` is one cluster
whose stages update at each micro-batch; `in_rounds` is several clusters without staleness, by the arithmetic of a run's
averaging (ring_allreduce/rounds/progress.py). The models of all seeds are trained as one, whose tensors have a row for
each: no seed sees another's numbers, and many small products take the time of one. Nothing is timed, so the figures
depend on no machine's speed.
"""

import copy
import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import count

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from experiments.pipeline.delays import Delayed, by_depth
from experiments.pipeline.tasks import Batch, Task
from experiments.wire.averaging import flat, put
from ravnest.training.optimizer import OptimizerConfig
from ring_allreduce.rounds import Progress

Look = tuple[int, Sequence[float]]
"""Updates of the fleet, and each seed's held-out loss."""

Curve = Iterator[Look]
WARMUP = 40
"""Updates of the whole fleet over which the rate rises."""
MOST_CLUSTERS = 64
"""No two seeds share a cluster's samples."""
SMOOTHED = 3
"""Looks at the loss that are averaged, where they are as near to each other as asked."""


class Together(nn.Module):
    """Models of one kind as one: inputs (seeds, batch, …) to outputs (seeds, batch, …). They share nothing."""

    def __init__(self, models: Sequence[nn.Module]) -> None:
        super().__init__()
        first, *_ = models
        self._alike = (copy.deepcopy(first),)  # in a tuple, so that its parameters are no part of this
        for name, _ in list(first.named_parameters()):
            rows = torch.stack([model.get_parameter(name).detach() for model in models])
            _set(first, name, nn.Parameter(rows))
        for name, _ in list(first.named_buffers()):
            _set(first, name, torch.stack([model.get_buffer(name) for model in models]))
        self.model = first

    def forward(self, inputs: Tensor) -> Tensor:
        (alike,) = self._alike
        alike.train(self.training)
        values = {**dict(self.model.named_parameters()), **dict(self.model.named_buffers())}
        with sdpa_kernel(SDPBackend.MATH):  # the others have no rule for several models at once
            outputs: Tensor = vmap(lambda one, x: functional_call(alike, one, (x,)))(values, inputs)
        return outputs

    def fill(self, model: nn.Module, row: int) -> None:
        """Give a model of the same kind the weights and buffers of one seed."""
        own = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        with torch.no_grad():
            for name, value in [*self.model.named_parameters(), *self.model.named_buffers()]:
                own[name].copy_(value[row])


def _set(model: nn.Module, name: str, value: Tensor) -> None:
    owner, _, leaf = name.rpartition(".")
    setattr(model.get_submodule(owner), leaf, value)


class _Learned:
    """One task, learned by all seeds together."""

    def __init__(self, task: Task, seeds: Sequence[int]) -> None:
        self._task, self._seeds = task, seeds
        self._judged = task.model(0)

    def model(self) -> Together:
        return Together([self._task.model(seed) for seed in self._seeds])

    def batches(self, cluster: int) -> Iterator[Batch]:
        each = [self._task.batches(seed * MOST_CLUSTERS + cluster) for seed in self._seeds]
        for batches in zip(*each, strict=True):
            inputs, targets = zip(*batches, strict=True)
            yield torch.stack(inputs), torch.stack(targets)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The sum over seeds, so that each one's gradient is that of its own loss."""
        losses = [self._task.loss(output, target) for output, target in zip(outputs, targets, strict=True)]
        return torch.stack(losses).sum()

    def held_out(self, model: Together) -> list[float]:
        found = []
        for row in range(len(self._seeds)):
            model.fill(self._judged, row)
            found.append(self._task.held_out_loss(self._judged, whole=False))
        return found


def stale(task: Task, seeds: Sequence[int], lr: float, *, stages: int, every: int) -> Curve:
    """One cluster, by a job's default optimizer: the first of its stages is `stages` − 1 updates late, the last none.

    Ends where a loss is not finite.
    """
    learned = _Learned(task, seeds)
    model = learned.model()
    optimizer = OptimizerConfig.model_validate({"lr": lr, "schedule": {"warmup_updates": WARMUP}})
    training = Delayed(model, by_depth(model, stages), optimizer, learned.loss)
    for update, _ in training.train(learned.batches(0), 1):
        if update % every == 0:
            yield update, learned.held_out(model)


def in_rounds(
    task: Task, seeds: Sequence[int], lr: float, *, clusters: int, updates: int, lag: int, every: int
) -> Curve:
    """Clusters that make `updates` updates each between two rounds, and merge a round `lag` rounds later.

    What is judged is what the run would end with: the anchor with all rounds merged.
    """
    learned = _Learned(task, seeds)
    models = [learned.model() for _ in range(clusters)]
    optimizers = [torch.optim.AdamW(model.parameters(), lr=lr) for model in models]
    batches = [learned.batches(index) for index in range(clusters)]
    progress = [Progress(flat(model)) for model in models]
    ended, warmup = learned.model(), max(1, WARMUP // clusters)
    done, looked = 0, 0
    for number in count(1):
        for each in range(updates):
            rate = lr * min(1.0, (done + each + 1) / warmup)
            for model, optimizer, samples in zip(models, optimizers, batches, strict=True):
                _update(learned, model, optimizer, next(samples), rate)
        done += updates
        if number > lag:
            average = torch.stack([one.given(number - lag) for one in progress]).mean(0)
            for model, one in zip(models, progress, strict=True):
                put(model, flat(model) + one.merge(number - lag, average))
        for model, one in zip(models, progress, strict=True):
            one.snapshot(number, flat(model))
        _average_buffers(models)
        if clusters * done - looked >= every:
            looked = clusters * done
            put(ended, torch.stack([flat(model) for model in models]).mean(0))
            for buffer, other in zip(ended.buffers(), models[0].buffers(), strict=True):
                buffer.copy_(other)
            losses = learned.held_out(ended)
            if not all(map(math.isfinite, losses)):
                return
            yield looked, losses


def _update(learned: _Learned, model: Together, optimizer: torch.optim.Optimizer, batch: Batch, lr: float) -> None:
    inputs, targets = batch
    for group in optimizer.param_groups:
        group["lr"] = lr
    optimizer.zero_grad()
    learned.loss(model(inputs), targets).backward()  # type: ignore[no-untyped-call]
    optimizer.step()


def _average_buffers(models: Sequence[nn.Module]) -> None:
    for buffers in zip(*(model.buffers() for model in models), strict=True):
        if buffers[0].is_floating_point():
            mean = torch.stack(buffers).mean(0)
            for buffer in buffers:
                buffer.copy_(mean)


def reached(curve: Iterable[Look], target: float, *, seeds: int, every: int, most: float = math.inf) -> list[float]:
    """For each of so many seeds the updates after which its smoothed loss is `target`, between two looks; infinite
    where it is not within `most`. No more of the curve is asked for than that takes.
    """
    seen: list[Look] = []
    found = [math.inf] * seeds
    for look in curve:
        seen.append(look)
        at, losses = smoothed(seen, every)
        for seed, loss in enumerate(losses):
            if found[seed] == math.inf and loss <= target:
                found[seed] = at
                if len(seen) > 1:
                    earlier, befores = smoothed(seen[:-1], every)
                    share = (befores[seed] - target) / (befores[seed] - loss)
                    found[seed] = earlier + share * (at - earlier)
        if look[0] >= most or math.inf not in found:
            break
    return found


def smoothed(curve: Sequence[Look], every: int) -> tuple[float, list[float]]:
    """The last look averaged with those of the SMOOTHED · `every` updates up to it, where there are any."""
    near = [look for look in curve if look[0] > curve[-1][0] - SMOOTHED * every]
    losses = [sum(each) / len(near) for each in zip(*(losses for _, losses in near), strict=True)]
    return sum(at for at, _ in near) / len(near), losses
