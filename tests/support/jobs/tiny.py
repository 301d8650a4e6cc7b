"""Models and data small enough that a whole run takes seconds."""

import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset, TensorDataset

WORDS, CONTEXT = 11, 8


class Block(nn.Module):
    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x_BTC: Tensor) -> Tensor:  # noqa: N803 - shape suffixes
        batch, length, width = x_BTC.shape
        q, k, v = self.qkv(self.norm1(x_BTC)).view(batch, length, 3, 2, width // 2).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x_BTC = x_BTC + self.dropout(self.out(mixed.transpose(1, 2).reshape(batch, length, width)))
        return x_BTC + self.dropout(self.down(functional.gelu(self.up(self.norm2(x_BTC)))))


class Gpt(nn.Module):
    def __init__(self, layers: int, width: int, dropout: float) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, width), nn.Embedding(CONTEXT, width)
        self.blocks = nn.ModuleList(Block(width, dropout) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, WORDS)

    def forward(self, ids_BT: Tensor) -> Tensor:  # noqa: N803
        x_BTC = self.words(ids_BT) + self.places(torch.arange(ids_BT.shape[1], device=ids_BT.device))
        for block in self.blocks:
            x_BTC = block(x_BTC)
        return self.head(self.norm(x_BTC))


class Cnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(1, 6, 3, padding=1), nn.BatchNorm2d(6)
        self.conv2, self.bn2 = nn.Conv2d(6, 6, 3, padding=1), nn.BatchNorm2d(6)
        self.head = nn.Linear(6 * 16, 5)

    def forward(self, x_BCHW: Tensor) -> Tensor:  # noqa: N803
        x_BCHW = functional.relu(self.bn1(self.conv1(x_BCHW)))
        x_BCHW = functional.relu(self.bn2(self.conv2(x_BCHW))) + x_BCHW
        return self.head(functional.max_pool2d(x_BCHW, 2).flatten(1))


class Counting(nn.Module):
    """Learns less the more micro-batches it has seen, by a counter that is not saved."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(WORDS, 12), nn.Linear(12, WORDS)
        self.layers = nn.ModuleList(nn.Linear(12, 12) for _ in range(3))
        self.register_buffer("seen", torch.zeros(()), persistent=False)

    def forward(self, ids_BT: Tensor) -> Tensor:  # noqa: N803
        x_BTC = self.words(ids_BT)
        for layer in self.layers:
            x_BTC = x_BTC + torch.tanh(layer(x_BTC))
        if self.training:
            self.seen += 1
        return self.head(x_BTC / (1 + 0.05 * self.seen))


def gpt(layers: int = 3, width: int = 16, dropout: float = 0.0) -> nn.Module:
    return Gpt(layers, width, dropout)


def counting() -> nn.Module:
    return Counting()


def cnn() -> nn.Module:
    return Cnn()


def spectral() -> nn.Module:
    """Layers whose largest singular value is 1, by vectors of norm 1 that each forward in training moves."""
    layers = [nn.utils.parametrizations.spectral_norm(nn.Linear(16, 16)) for _ in range(2)]
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), *layers, nn.Linear(16, 5))


class SlowlyRead(Dataset[tuple[Tensor, ...]]):
    """The samples of another data set, each of which takes `read_s` to read, and next to no computing."""

    def __init__(self, samples: TensorDataset, read_s: float) -> None:
        self._samples, self._read_s = samples, read_s

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        time.sleep(self._read_s)
        return self._samples[index]


def words(samples: int = 240, held_out: int = 10, read_s: float = 0.0) -> SimpleNamespace:
    """Sequences that count up modulo WORDS from a random start: easy to learn.

    A run that goes on until a test ends it takes `read_s` for each sample, and leaves the processor to other tests.
    """
    starts = torch.randint(WORDS, (samples + held_out, 1), generator=torch.Generator().manual_seed(5))
    ids = (starts + torch.arange(CONTEXT + 1)) % WORDS
    parts = [TensorDataset(part[:, :-1], part[:, 1:]) for part in ids.split([samples, held_out])]
    train = SlowlyRead(parts[0], read_s) if read_s else parts[0]
    return SimpleNamespace(train=train, held_out=parts[1], baselines={"guessing": 2.3979})


def images(samples: int = 240, held_out: int = 10) -> SimpleNamespace:
    """Noise around one of five prototypes."""
    draw = torch.Generator().manual_seed(6)
    prototypes = torch.randn(5, 1, 8, 8, generator=draw)
    labels = torch.randint(5, (samples + held_out,), generator=draw)
    pictures = prototypes[labels] + 0.3 * torch.randn(samples + held_out, 1, 8, 8, generator=draw)
    split = [samples, held_out]
    parts = [TensorDataset(x, y) for x, y in zip(pictures.split(split), labels.split(split), strict=True)]
    return SimpleNamespace(train=parts[0], held_out=parts[1])


def noting(path: str) -> Callable[[object], None]:
    """A tracker that writes down the kinds of the records it gets."""
    file = Path(path).open("a", encoding="utf-8")  # noqa: SIM115 - closed with the process

    def tracker(record: Any) -> None:
        file.write(record["kind"] + "\n")
        file.flush()

    return tracker
