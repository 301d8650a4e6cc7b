"""A model that predicts the next state of a random chain. No model does better than the chain's entropy."""

import sys
import time
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

STATES, LENGTH, WIDTH, LAYERS = 24, 16, 32, 4
SAMPLE_S = 0.006
"""What a training sample takes a stage to read: it paces the run, which would take all of the processor else."""


class Paced(Dataset[tuple[Tensor, ...]]):
    """A data set whose samples come slowly."""

    def __init__(self, whole: TensorDataset) -> None:
        self._whole = whole

    def __len__(self) -> int:
        return len(self._whole)

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        if Path(sys.argv[0]).stem == "own_process":
            time.sleep(SAMPLE_S)
        return self._whole[index]


class Block(nn.Module):
    """A layer that mixes a state with the one before it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Model(nn.Module):
    """Embeds states and passes them through residual layers."""

    def __init__(self) -> None:
        super().__init__()
        self.states = nn.Embedding(STATES, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, STATES)

    def forward(self, states: Tensor) -> Tensor:
        x = self.states(states)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def model() -> nn.Module:
    """Return the model."""
    return Model()


def data(samples: int = 4096, held_out: int = 512) -> SimpleNamespace:
    """Return walks along one chain."""
    draw = torch.Generator().manual_seed(7)
    chances = torch.distributions.Dirichlet(torch.full((STATES,), 0.3))
    torch.manual_seed(7)
    step = chances.sample((STATES,))
    walks = torch.zeros(samples + held_out, LENGTH + 1, dtype=torch.long)
    walks[:, 0] = torch.randint(STATES, (samples + held_out,), generator=draw)
    for place in range(LENGTH):
        walks[:, place + 1] = torch.multinomial(step[walks[:, place]], 1, generator=draw).squeeze(1)
    parts = [TensorDataset(part[:, :-1], part[:, 1:]) for part in walks.split([samples, held_out])]
    return SimpleNamespace(train=Paced(parts[0]), held_out=parts[1])
