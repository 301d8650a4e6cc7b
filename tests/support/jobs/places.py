"""A model that is sequence first inside: learned places are added where the samples lie in the second dimension."""

import torch
from torch import Tensor, nn

from tests.support.jobs import tiny


class Places(nn.Module):
    """With one sample, the gradient of the sum is laid out alike for both addends."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(tiny.WORDS, 16)
        self.mix = nn.Linear(16, 16)
        self.places = nn.Parameter(torch.randn(tiny.CONTEXT, 16) * 0.1)
        self.head = nn.Linear(16, tiny.WORDS)

    def forward(self, ids: Tensor) -> Tensor:
        x = torch.tanh(self.mix(self.words(ids))).transpose(0, 1) + self.places.unsqueeze(1)
        return self.head(torch.tanh(x).transpose(0, 1))


def model() -> nn.Module:
    return Places()
