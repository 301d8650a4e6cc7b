"""A GPT of a given number of parameters, and sequences that it can learn.

In: the number of parameters. Out: the configuration of a Hugging Face model, and the sets of a job: sequences of bytes
in which each number follows from the one before by one of a few rules.
"""

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

VOCABULARY, LENGTH = 256, 32
HEAD = 64
"""The width of an attention head."""


def config_of(parameters: int) -> dict[str, Any]:
    """The smallest GPT-2 of at least so many parameters that has about as many layers as heads."""
    heads = max(1, round((parameters / 12 / HEAD**2) ** (1 / 3)))
    width = HEAD * heads
    layers = -(-(parameters - (2 * VOCABULARY + LENGTH) * width) // (12 * width**2 + 13 * width))
    return {
        "model_type": "gpt2",
        "vocab_size": VOCABULARY,
        "n_positions": LENGTH,
        "n_embd": width,
        "n_layer": max(1, layers),
        "n_head": heads,
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": 0,
    }


class Sequences(Dataset[tuple[Tensor, Tensor]]):
    """x_{t+1} = (a·x_t + c) mod 256, with a of four and c of four; the target is the sequence one place on."""

    def __init__(self, samples: int, first: int) -> None:
        self._samples, self._first = samples, first

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(self._first + index)
        a, c, x = (int(torch.randint(size, (), generator=generator)) for size in (4, 4, VOCABULARY))
        numbers = [x]
        for _ in range(LENGTH):
            numbers.append(((2 * a + 1) * numbers[-1] + 2 * c + 1) % VOCABULARY)
        return torch.tensor(numbers[:-1]), torch.tensor(numbers[1:])


def data(samples: int = 100_000, held_out: int = 4) -> SimpleNamespace:
    """The sets of a job."""
    return SimpleNamespace(train=Sequences(samples, 0), held_out=Sequences(held_out, samples))
