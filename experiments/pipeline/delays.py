"""Training with delayed gradients in one process: what an asynchronous pipeline computes, without the pipeline.

Decides which version of the weights each stage uses for an update: the one of `delay` updates ago, for its forward
and its backward alike, and another one in each stage. Weights, optimizer, correction and schedule are ravnest's own;
what is left out is who carries the bytes and when. Clipping is by the norm of the very gradient, where a run knows
the last one. The unit test holds it to the real stages.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ravnest.training.optimizer import OptimizerConfig, clip_scale, learning_rate
from ravnest.training.weights import ParameterSet, VersionedWeights

Batch = tuple[Tensor, Tensor]


def uniform(model: nn.Module, delay: int) -> dict[str, int]:
    """The same delay at every parameter, in updates: double-buffered weights have 1."""
    return {name: delay for name, _ in model.named_parameters()}


def by_depth(model: nn.Module, stages: int) -> dict[str, int]:
    """Delays of `stages` stages that update at each micro-batch: stages − 1 at the first, 0 at the last.

    Modules that hold parameters are spread evenly over the stages, in the order in which the model names them, which
    must be that of execution. A model with fewer such modules than stages has stages without parameters.
    """
    holders = list(dict.fromkeys(name.rpartition(".")[0] for name, _ in model.named_parameters()))
    stage = {holder: place * stages // len(holders) for place, holder in enumerate(holders)}
    return {name: stages - 1 - stage[name.rpartition(".")[0]] for name, _ in model.named_parameters()}


class _Stage:
    """The parameters of one delay: their optimizer, and as many versions as that delay needs."""

    def __init__(self, parameters: Mapping[str, nn.Parameter], config: OptimizerConfig, delay: int) -> None:
        self._parameters = parameters
        self.weights = VersionedWeights(self, config)
        self._versions: deque[ParameterSet] = deque([self.weights.current()], maxlen=delay + 1)

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        return iter(self._parameters.items())

    def set_parameter(self, name: str, parameter: nn.Parameter) -> None:
        """VersionedWeights tells of its newest parameter; which one the model uses is decided by `oldest`."""

    @property
    def oldest(self) -> ParameterSet:
        return self._versions[0]

    @property
    def newest(self) -> ParameterSet:
        return self._versions[-1]

    def update(self, lr: float, scale: float | None) -> None:
        self.weights.collect(self.oldest)
        self.weights.step(lr, scale, staleness=float(len(self._versions) - 1), copy=True)
        self._versions.append(self.weights.current())


@dataclass(frozen=True)
class Delayed:
    """A training with delayed gradients.

    `model` is trained in place; `delays` gives each parameter's, in updates.
    """

    model: nn.Module
    delays: Mapping[str, int]
    optimizer: OptimizerConfig
    loss: Callable[[Tensor, Tensor], Tensor]

    def train(self, batches: Iterable[Batch], total_updates: int) -> Iterator[tuple[int, float]]:
        """After each update: its number (from 1) and its batch's loss. The model then has the newest weights.

        Ends early, without an error, when the loss is not finite.
        """
        named = dict(self.model.named_parameters())
        stages = [
            _Stage({name: p for name, p in named.items() if self.delays[name] == delay}, self.optimizer, delay)
            for delay in sorted(set(self.delays.values()))
        ]
        norm: float | None = None
        for update, (inputs, target) in enumerate(batches):
            for stage in stages:
                self._use(stage.oldest)
            loss = self.loss(self.model(inputs), target)
            if not math.isfinite(loss.item()):
                return
            loss.backward()  # type: ignore[no-untyped-call]
            lr = learning_rate(self.optimizer.lr, self.optimizer.schedule, update, total_updates)
            scale = None
            if self.optimizer.clip_norm is not None:
                gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
                norm = float(torch.stack(torch._foreach_norm(gradients)).norm())
                scale = clip_scale(norm, self.optimizer.clip_norm)
            for stage in stages:
                stage.update(lr, scale)
            for stage in stages:
                self._use(stage.newest)
            yield update + 1, loss.item()

    def _use(self, parameters: ParameterSet) -> None:
        for name, parameter in parameters.items():
            owner, _, leaf = name.rpartition(".")
            setattr(self.model.get_submodule(owner), leaf, parameter)
