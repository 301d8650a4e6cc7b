"""The kind of work that a machine's speed is told for where no job is named: a small transformer in float32.

Four layers of width 512 with 8 heads over 128 tokens, feed-forward 2048, 4 samples a micro-batch, AdamW.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from ravnest.job.config import Job, job_from_mapping

WORDS = "a transformer of 4 layers, width 512, 128 tokens, 4 samples a micro-batch, in float32 with AdamW"
LAYERS, WIDTH, HEADS, TOKENS, CLASSES = 4, 512, 8, 128, 512
_SAMPLES = 8


def job() -> Job:
    """A job like any other: its factories are this module's."""
    return job_from_mapping(
        {
            "model": {"factory": f"{__name__}:model"},
            "data": {"factory": f"{__name__}:data"},
            "micro_batch": 4,
            "update_every": 8,
            "optimizer": {"name": "adamw", "lr": 1e-4},
            "stop": {"samples": 1024},
        }
    )


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(LAYERS)
        )
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        out: Tensor = self.head(x.mean(dim=1))
        return out


def model() -> nn.Module:
    return Model()


@dataclass(frozen=True)
class Data:
    train: TensorDataset
    held_out: TensorDataset


def data() -> Data:
    chance = torch.Generator().manual_seed(0)
    inputs = torch.randn(_SAMPLES, TOKENS, WIDTH, generator=chance)
    targets = torch.randint(0, CLASSES, (_SAMPLES,), generator=chance)
    return Data(TensorDataset(inputs, targets), TensorDataset(inputs[:1], targets[:1]))
