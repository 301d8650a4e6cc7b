"""Models that use a parameter in several places: embedding and head, and a table in the middle, too."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.support.jobs import tiny


class Large(nn.Module):
    """A table that is most of the model."""

    def __init__(self, words: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, 16)
        self.blocks = nn.ModuleList(tiny.Block(16, 0.0) for _ in range(3))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        for block in self.blocks:
            x = block(x)
        return functional.linear(x, self.words.weight)[..., : tiny.WORDS]


class Everywhere(nn.Module):
    """One table for the words at the front, in the middle and, without a module of its own, at the end; another that
    is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(tiny.WORDS, 16)
        self.places = nn.Embedding(tiny.CONTEXT, 16)
        self.places.weight.requires_grad_(False)
        self.lower, self.middle, self.upper = (tiny.Block(16, 0.0) for _ in range(3))
        self.again = nn.Embedding(tiny.CONTEXT, 16)
        self.again.weight = self.places.weight

    def forward(self, ids: Tensor) -> Tensor:
        place = torch.arange(ids.shape[1], device=ids.device)
        x = self.middle(self.lower(self.words(ids) + self.places(place)))
        x = self.upper(x + 0.5 * self.words(ids)) + self.again(place)
        return functional.linear(x, self.words.weight)


def gpt(layers: int = 3, width: int = 16, dropout: float = 0.0) -> nn.Module:
    model = tiny.Gpt(layers, width, dropout)
    model.head.weight = model.words.weight
    return model


def large(words: int = 20_000) -> nn.Module:
    return Large(words)


def everywhere() -> nn.Module:
    return Everywhere()
