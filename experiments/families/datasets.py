"""Small data sets, as users write them: ten kinds of ways to have data, and some that have to be refused.

Each factory returns an object with `train` and `held_out`. Targets follow from inputs by a rule that a small model
can learn in some forty updates.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

TRAIN, HELD_OUT = 1024, 128
WIDTH, CLASSES, WORDS, LENGTH, SIDE = 16, 4, 17, 12, 16
MASK = WORDS


def _drawn() -> torch.Generator:
    return torch.Generator().manual_seed(5)


def _split(*columns: Tensor) -> SimpleNamespace:
    return SimpleNamespace(
        train=TensorDataset(*(column[:TRAIN] for column in columns)),
        held_out=TensorDataset(*(column[TRAIN:] for column in columns)),
    )


def _vectors() -> tuple[Tensor, Tensor]:
    draw = _drawn()
    x = torch.randn(TRAIN + HELD_OUT, WIDTH, generator=draw)
    return x, (x @ torch.randn(WIDTH, CLASSES, generator=draw)).argmax(1)


def vectors() -> SimpleNamespace:
    """(16,) → a class of 4, as tensors."""
    return _split(*_vectors())


def numbers() -> SimpleNamespace:
    """(16,) → (4,), for a regression."""
    x, _ = _vectors()
    return _split(x, torch.tanh(x[:, :4] + x[:, 4:8]))


def itself() -> SimpleNamespace:
    """(16,) → the same, for autoencoders. They have six directions."""
    draw = _drawn()
    x = torch.randn(TRAIN + HELD_OUT, 6, generator=draw) @ torch.randn(6, WIDTH, generator=draw) / 2
    return _split(x, x)


def _images(channels: int = 3) -> tuple[Tensor, Tensor]:
    """Stripes in one of four directions, with noise: (channels, 16, 16)."""
    draw = _drawn()
    count = TRAIN + HELD_OUT
    labels = torch.randint(CLASSES, (count,), generator=draw)
    angle = labels * (torch.pi / CLASSES)
    at = torch.linspace(-1, 1, SIDE)
    across = at[None, :, None] * torch.cos(angle)[:, None, None] + at[None, None, :] * torch.sin(angle)[:, None, None]
    phase = torch.rand(count, generator=draw)[:, None, None] * 6.28
    waves = torch.sin(6 * across + phase)[:, None].expand(-1, channels, -1, -1)
    return waves + 0.7 * torch.randn(count, channels, SIDE, SIDE, generator=draw), labels


def images() -> SimpleNamespace:
    """(3, 16, 16) → a class of 4."""
    return _split(*_images())


def grey() -> SimpleNamespace:
    """(1, 16, 16) → a class of 4."""
    return _split(*_images(1))


def volumes() -> SimpleNamespace:
    """(1, 4, 16, 16) → a class of 4."""
    x, y = _images(4)
    return _split(x[:, None], y)


def waves() -> SimpleNamespace:
    """(2, 32) → a class of 4, by frequency."""
    draw = _drawn()
    labels = torch.randint(CLASSES, (TRAIN + HELD_OUT,), generator=draw)
    time = torch.arange(32) / 5
    phase = torch.rand(TRAIN + HELD_OUT, 2, 1, generator=draw) * 6.28
    clean = torch.sin((labels[:, None, None] + 1) * time + phase)
    return _split(clean + 0.5 * torch.randn(clean.shape, generator=draw), labels)


def masks() -> SimpleNamespace:
    """(3, 16, 16) → a class of each pixel (16, 16): whether a smoothed channel is high."""
    x, _ = _images()
    return _split(x, (torch.nn.functional.avg_pool2d(x[:, :1], 3, 1, 1)[:, 0] > 0).long())


def denoised() -> SimpleNamespace:
    """(3, 16, 16) → the same smoothed, for image-to-image models."""
    x, _ = _images()
    return _split(x, torch.nn.functional.avg_pool2d(x, 3, 1, 1))


def _sentences() -> Tensor:
    """(count, 13) words of which each follows from the last by one of two rules."""
    draw = _drawn()
    words = [torch.randint(WORDS, (TRAIN + HELD_OUT,), generator=draw)]
    for _ in range(LENGTH):
        chance = torch.rand(TRAIN + HELD_OUT, generator=draw)
        words.append(torch.where(chance < 0.85, (words[-1] * 3 + 1) % WORDS, (words[-1] + 5) % WORDS))
    return torch.stack(words, 1)


def sentences() -> SimpleNamespace:
    """12 words → the next of each."""
    words = _sentences()
    return _split(words[:, :-1].contiguous(), words[:, 1:].contiguous())


def first_words() -> SimpleNamespace:
    """12 words → a class of 4, for classifiers of sequences."""
    words = _sentences()[:, :-1].contiguous()
    return _split(words, words[:, 0] % CLASSES)


def tracks() -> SimpleNamespace:
    """(12, 16) → a class of 4, for recurrent nets over vectors."""
    draw = _drawn()
    labels = torch.randint(CLASSES, (TRAIN + HELD_OUT,), generator=draw)
    steps = torch.randn(CLASSES, WIDTH, generator=draw)[labels][:, None] * torch.arange(LENGTH)[None, :, None] / LENGTH
    return _split(steps + torch.randn(steps.shape, generator=draw), labels)


class _Rows(Dataset[Any]):
    """Samples that a function makes of rows."""

    def __init__(self, make: Callable[..., Any], columns: Sequence[Tensor]) -> None:
        self._make = make
        self._columns = columns

    def __len__(self) -> int:
        return len(self._columns[0])

    def __getitem__(self, index: int) -> Any:
        return self._make(*(column[index] for column in self._columns))


def _made(make: Callable[..., Any], *columns: Tensor) -> SimpleNamespace:
    return SimpleNamespace(
        train=_Rows(make, [column[:TRAIN] for column in columns]),
        held_out=_Rows(make, [column[TRAIN:] for column in columns]),
    )


def pairs() -> SimpleNamespace:
    """Two inputs by position, (8,) and (8,) → a class."""
    x, y = _vectors()
    return _made(lambda row, label: ((row[:8], row[8:]), label), x, y)


def by_keyword() -> SimpleNamespace:
    """Inputs `left` and `right` by keyword → a class."""
    x, y = _vectors()
    return _made(lambda row, label: ({"left": row[:8], "right": row[8:]}, label), x, y)


def graphs() -> SimpleNamespace:
    """Node features (12, 8) and a normalised adjacency (12, 12), by keyword → a class of each node (12,).

    A node's class is the argmax of the mean of its neighbours' first four features.
    """
    draw = _drawn()
    count, nodes = TRAIN + HELD_OUT, 12
    edges = (torch.rand(count, nodes, nodes, generator=draw) < 0.2).float()
    edges = ((edges + edges.transpose(1, 2) + torch.eye(nodes)) > 0).float()
    adjacency = edges / edges.sum(-1, keepdim=True)
    x = torch.randn(count, nodes, 8, generator=draw)
    return _made(
        lambda features, near, labels: ({"x": features, "adjacency": near}, labels),
        x,
        adjacency,
        (adjacency @ x)[..., :CLASSES].argmax(-1),
    )


def hugging_face() -> SimpleNamespace:
    """Dicts with lists, as Hugging Face data sets have them: `input_ids`, `attention_mask`, `labels`."""
    words = _sentences()

    def sample(row: Tensor) -> dict[str, list[int]]:
        return {"input_ids": row[:-1].tolist(), "attention_mask": [1] * LENGTH, "labels": row[1:].tolist()}

    return _made(sample, words)


def classified_text() -> SimpleNamespace:
    """Dicts with `input_ids`, `attention_mask` and `label`, one number."""
    words = _sentences()

    def sample(row: Tensor) -> dict[str, Any]:
        return {
            "input_ids": row[:-1].tolist(),
            "attention_mask": [1] * 9 + [0] * 3,
            "label": int(row[0]) % CLASSES,
        }

    return _made(sample, words)


def pixel_values() -> SimpleNamespace:
    """Dicts with `pixel_values` (3, 16, 16) and `labels`."""
    x, y = _images()
    return _made(lambda image, label: {"pixel_values": image, "labels": label}, x, y)


def sounds() -> SimpleNamespace:
    """Dicts with `input_values` (64,) and `labels`, by frequency."""
    split = waves()
    made = [torch.cat([part.tensors[0].flatten(1) for part in (split.train, split.held_out)])]
    labels = torch.cat([part.tensors[1] for part in (split.train, split.held_out)])
    return _made(lambda wave, label: {"input_values": wave, "labels": label}, *made, labels)


def loaders() -> SimpleNamespace:
    """torch's DataLoaders, shuffled and with a batch size of their own."""
    split = vectors()
    return SimpleNamespace(
        train=DataLoader(split.train, batch_size=5, shuffle=True),
        held_out=DataLoader(split.held_out, batch_size=5),
    )


def ragged() -> SimpleNamespace:
    """Words of 5 to 12, to be padded by `padded`."""
    words = _sentences()
    lengths = torch.randint(5, LENGTH + 1, (len(words),), generator=_drawn())
    made = _made(lambda row, length: (row[: int(length)], row[1 : int(length) + 1]), words, lengths)
    made.collate_fn = padded
    return made


def padded(samples: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """A batch of 12 words each. What is not there is word 0, and is no target (-100)."""
    inputs = torch.zeros(len(samples), LENGTH, dtype=torch.long)
    targets = torch.full((len(samples), LENGTH), -100)
    for row, (words, following) in enumerate(samples):
        inputs[row, : len(words)], targets[row, : len(following)] = words, following
    return inputs, targets


def ragged_unpadded() -> SimpleNamespace:
    """The same without a function that pads: it has to be refused."""
    made = ragged()
    del made.collate_fn
    return made


def masked_words() -> SimpleNamespace:
    """Masked language modelling: which words are masked is drawn at each read, for inputs and targets alike."""

    def sample(row: Tensor) -> tuple[Tensor, Tensor]:
        masked = torch.rand(LENGTH) < 0.3
        masked[0] = True
        return torch.where(masked, MASK, row[:-1]), torch.where(masked, row[:-1], -100)

    return _made(sample, _sentences())


def turned() -> SimpleNamespace:
    """Images turned by a multiple of 90 degrees, which is the target; Python's generator draws it."""

    def sample(image: Tensor, _: Tensor) -> tuple[Tensor, int]:
        image = image + torch.linspace(0, 3, SIDE)[None, :, None]
        turns = random.randrange(4)
        return torch.rot90(image, turns, (1, 2)).contiguous(), turns

    return _made(sample, *_images(1))


def cropped() -> SimpleNamespace:
    """Joint crops of image and mask; numpy's generator draws the place."""

    def sample(image: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        top, left = np.random.randint(0, 9, 2)
        return image[:, top : top + 8, left : left + 8], mask[top : top + 8, left : left + 8]

    x, _ = _images()
    return _made(sample, x, (torch.nn.functional.avg_pool2d(x[:, :1], 3, 1, 1)[:, 0] > 0).long())


def two_targets() -> SimpleNamespace:
    """(16,) → a class and (4,), as a tuple."""
    x, y = _vectors()
    return _made(lambda row, label: (row, (label, torch.tanh(row[:4]))), x, y)


def single_numbers() -> SimpleNamespace:
    """One number → its square, as Python's floats."""
    x = torch.randn(TRAIN + HELD_OUT, generator=_drawn())
    return _made(lambda value: (value.reshape(1), [float(value) ** 2]), x)


def own_generator() -> SimpleNamespace:
    """A data set with a generator of its own: its first and last stage would read other samples. To be refused."""
    draws = torch.Generator()
    draws.seed()

    def sample(row: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
        turn = int(torch.randint(4, (), generator=draws))
        return row.roll(turn), (label + turn) % CLASSES

    return _made(sample, *_vectors())


class _Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        yield from zip(*_vectors(), strict=True)


def stream() -> SimpleNamespace:
    """An iterable data set without a length: to be refused."""
    return SimpleNamespace(train=_Stream(), held_out=_Stream())


def changing_lengths() -> SimpleNamespace:
    """Batches of several lengths, by a function that pads each to its longest: to be refused."""
    made = ragged()
    made.collate_fn = lambda samples: padded_to(samples, max(len(words) for words, _ in samples))
    return made


def padded_to(samples: list[tuple[Tensor, Tensor]], length: int) -> tuple[Tensor, Tensor]:
    """Like `padded`, but of this length."""
    inputs, targets = padded(samples)
    return inputs[:, :length], targets[:, :length]
