"""What is learned in experiments on quality: characters of a text by a small GPT, and digits by a small CNN.

Decides the models, their batches and how they are judged. A seed gives the initial weights and the samples' order, so
that runs of one seed are paired. The models are those of examples/, found as a job finds them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from experiments.harness.report import ROOT
from ravnest.factories import FactoryConfig, call

SHAKESPEARE = ROOT.parent / "shared" / "data" / "tinyshakespeare.txt"
TAUGHT = 0.9
"""The share of a text that is trained on; the rest is held out."""

Batch = tuple[Tensor, Tensor]


class Task(Protocol):
    """One thing to learn."""

    @property
    def name(self) -> str:
        """Names the sizes too: results of one name are comparable."""
        ...

    def model(self, seed: int) -> nn.Module: ...
    def batches(self, seed: int) -> Iterator[Batch]: ...
    def loss(self, output: Tensor, target: Tensor) -> Tensor: ...

    def held_out_loss(self, model: nn.Module, *, whole: bool) -> float:
        """Nats per prediction; of a fixed part unless `whole`."""
        ...

    def accuracy(self, model: nn.Module) -> float:
        """Of the most likely class, held out, in percent."""
        ...


def made(factory: str, **arguments: object) -> object:
    """What a factory of the user's makes, found as a job finds it."""
    return call(FactoryConfig.model_validate({"factory": factory, "args": arguments}), [ROOT])


def _model(seed: int, factory: str, **arguments: object) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = made(factory, **arguments)
    assert isinstance(model, nn.Module)
    return model


@dataclass(frozen=True)
class Characters:
    """Next characters of `text`: `batch` windows of `context` characters an update."""

    text: Path
    layers: int
    width: int
    context: int
    batch: int

    @property
    def name(self) -> str:
        sizes = f"{self.layers}x{self.width}, {self.batch} windows of {self.context} an update"
        return f"characters of {self.text.name}, GPT {sizes}"

    def model(self, seed: int) -> nn.Module:
        sizes = {"layers": self.layers, "width": self.width, "heads": max(1, self.width // 16)}
        return _model(seed, "examples.home.model:gpt", vocab=self._vocabulary, context=self.context, **sizes)

    def batches(self, seed: int) -> Iterator[Batch]:
        ids, _ = self._split()
        generator = torch.Generator().manual_seed(1_000_003 * (seed + 1))
        offsets = torch.arange(self.context + 1)
        while True:
            at = torch.randint(len(ids) - self.context, (self.batch,), generator=generator)
            windows = ids[at[:, None] + offsets]
            yield windows[:, :-1], windows[:, 1:]

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        return functional.cross_entropy(output.flatten(0, 1), target.flatten())

    def held_out_loss(self, model: nn.Module, *, whole: bool) -> float:
        return self._judge(model, whole=whole)[0]

    def accuracy(self, model: nn.Module) -> float:
        return self._judge(model, whole=True)[1]

    def _judge(self, model: nn.Module, *, whole: bool) -> tuple[float, float]:
        _, ids = self._split()
        windows = ids[: (len(ids) - 1) // self.context * self.context + 1]
        inputs, targets = windows[:-1].view(-1, self.context), windows[1:].view(-1, self.context)
        if not whole:
            inputs, targets = inputs[:: len(inputs) // 256 or 1], targets[:: len(targets) // 256 or 1]
        return _judge(model, torch.split(inputs, 64), torch.split(targets, 64))

    @property
    def _vocabulary(self) -> int:
        return int(_ids(self.text).max()) + 1

    def _split(self) -> tuple[Tensor, Tensor]:
        ids = _ids(self.text)
        cut = int(len(ids) * TAUGHT)
        return ids[:cut], ids[cut:]


@cache
def _ids(path: Path) -> Tensor:
    """The text's characters by their place among its distinct ones."""
    text = path.read_text(encoding="utf-8")
    place = {character: number for number, character in enumerate(sorted(set(text)))}
    return torch.tensor([place[character] for character in text])


@dataclass(frozen=True)
class Digits:
    """scikit-learn's digits by examples/digits' CNN: batches of 64, a new order in each epoch."""

    batch: int = 64

    @property
    def name(self) -> str:
        return f"digits, CNN, {self.batch} images an update"

    def model(self, seed: int) -> nn.Module:
        return _model(seed, "examples.digits.model:cnn", dropout=0.0)

    def batches(self, seed: int) -> Iterator[Batch]:
        images, labels = self._data()[0]
        generator = torch.Generator().manual_seed(1_000_003 * (seed + 1))
        while True:
            order = torch.randperm(len(labels), generator=generator)
            for chosen in torch.split(order, self.batch):
                if len(chosen) == self.batch:
                    yield images[chosen], labels[chosen]

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        return functional.cross_entropy(output, target)

    def held_out_loss(self, model: nn.Module, *, whole: bool) -> float:
        images, labels = self._data()[1]
        return _judge(model, [images], [labels])[0]

    def accuracy(self, model: nn.Module) -> float:
        images, labels = self._data()[1]
        return _judge(model, [images], [labels])[1]

    def _data(self) -> tuple[Batch, Batch]:
        return _digits()


@cache
def _digits() -> tuple[Batch, Batch]:
    data: Any = made("examples.digits.data:digits")
    return data.train.tensors, data.held_out.tensors


def _judge(model: nn.Module, inputs: Sequence[Tensor], targets: Sequence[Tensor]) -> tuple[float, float]:
    """Mean nats and percent right. The model comes back in training mode."""
    model.eval()
    nats, right, count = 0.0, 0, 0
    with torch.no_grad():
        for x, target in zip(inputs, targets, strict=True):
            logits = model(x).flatten(0, -2)
            nats += functional.cross_entropy(logits, target.flatten(), reduction="sum").item()
            right += int((logits.argmax(-1) == target.flatten()).sum())
            count += target.numel()
    model.train()
    return nats / count, 100 * right / count
