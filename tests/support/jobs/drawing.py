"""Datasets that draw random numbers when they are read, and what they are trained with."""

import random
from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

WORDS, MASK, LENGTH = 7, 7, 6


class Turned(Dataset):
    """Pictures turned by a random number of quarters, which is the target: the draw touches input and target."""

    def __init__(self, samples: int, first: int) -> None:
        self.samples, self.first = samples, first

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        chance = torch.Generator().manual_seed(self.first + index)
        picture = 0.2 * torch.randn(1, 4, 4, generator=chance)
        picture[:, :, 0] += 2.0
        turns = random.randrange(4)
        picture = picture * float(np.random.uniform(0.9, 1.1)) + 0.05 * torch.randn(1, 4, 4)
        return torch.rot90(picture, turns, (1, 2)).contiguous(), turns


def rotations(samples: int = 96, held_out: int = 24) -> SimpleNamespace:
    return SimpleNamespace(train=Turned(samples, 0), held_out=Turned(held_out, samples))


class Turning(IterableDataset[tuple[Tensor, int]]):
    """The same pictures as a stream of two shards."""

    def __init__(self, numbers: list[int], shards: int = 2) -> None:
        self.numbers, self.num_shards, self.at = numbers, shards, 0

    def shard(self, num_shards: int, index: int) -> "Turning":
        return Turning(self.numbers[index::num_shards], 1)

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        self.at = state_dict["at"]

    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        pictures = Turned(len(self.numbers), 0)
        while self.at < len(self.numbers):
            self.at += 1
            yield pictures[self.numbers[self.at - 1]]


def streamed() -> SimpleNamespace:
    return SimpleNamespace(train=Turning(list(range(48))), held_out=Turned(24, 96))


def looker() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 24), nn.GELU(), nn.Linear(24, 24), nn.GELU(), nn.Linear(24, 4))


class Counted(Dataset):
    """Rows as Hugging Face datasets give them: dicts of lists, of several lengths, and a column that nobody needs."""

    def __init__(self, samples: int, first: int) -> None:
        self.samples, self.first = samples, first

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> dict[str, object]:
        start, length = (self.first + index) % WORDS, 3 + (self.first + index) % (LENGTH - 2)
        return {"input_ids": [(start + place) % WORDS for place in range(length)], "text": f"row {index}"}


def masked(rows: list[dict[str, list[int]]]) -> dict[str, Tensor]:
    """Pads to LENGTH and masks a third of the words, which are the labels, as collators for masked models do."""
    ids = torch.zeros(len(rows), LENGTH, dtype=torch.int64)
    there = torch.zeros(len(rows), LENGTH, dtype=torch.bool)
    for number, row in enumerate(rows):
        ids[number, : len(row["input_ids"])] = torch.tensor(row["input_ids"])
        there[number, : len(row["input_ids"])] = True
    hidden = there & (torch.rand(ids.shape) < 0.34)
    hidden[:, 1] = True
    return {"ids": ids.masked_fill(hidden, MASK), "labels": ids.masked_fill(~hidden, -100)}


def sentences(samples: int = 96, held_out: int = 24) -> SimpleNamespace:
    train, held = Counted(samples, 0), Counted(held_out, samples)
    return SimpleNamespace(train=DataLoader(train, 4, shuffle=True, collate_fn=masked), held_out=DataLoader(held, 4))


class Guesser(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS + 1, 12)
        self.mix = nn.Linear(12 * LENGTH, 48)
        self.head = nn.Linear(48, LENGTH * WORDS)

    def forward(self, ids: Tensor) -> Tensor:
        seen = torch.tanh(self.mix(self.words(ids).flatten(1)))
        return self.head(seen).unflatten(1, (LENGTH, WORDS))


def guesser() -> nn.Module:
    return Guesser()


class OwnChance(Turned):
    """As Turned, with a generator of its own, of which no process knows what another has drawn."""

    def __init__(self, samples: int, first: int) -> None:
        super().__init__(samples, first)
        self.chance = np.random.default_rng(3)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        picture, _ = super().__getitem__(index)
        turns = int(self.chance.integers(4))
        return torch.rot90(picture, turns, (1, 2)).contiguous(), turns


def own_chance(samples: int = 96, held_out: int = 24) -> SimpleNamespace:
    return SimpleNamespace(train=OwnChance(samples, 0), held_out=Turned(held_out, samples))
