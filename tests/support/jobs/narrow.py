"""A model whose parameters are bfloat16, with a table that its first and its last layer use."""

from types import SimpleNamespace

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

WORDS = 11


class Narrow(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, width)
        self.first, self.second, self.third = (nn.Linear(width, width) for _ in range(3))
        self.head = nn.Linear(width, WORDS, bias=False)
        self.head.weight = self.table.weight
        self.bfloat16()

    def forward(self, ids: Tensor) -> Tensor:
        x = self.table(ids).mean(1)
        for layer in (self.first, self.second, self.third):
            x = x + torch.tanh(layer(x))
        return self.head(x)


def data() -> SimpleNamespace:
    generator = torch.Generator().manual_seed(0)

    def part(samples: int) -> TensorDataset:
        ids = torch.randint(WORDS, (samples, 4), generator=generator)
        return TensorDataset(ids, ids[:, 0])

    return SimpleNamespace(train=part(64), held_out=part(19))
