"""A small network that reads digits, in plain PyTorch. Nothing in it knows ravnest."""

import torch
from torch import Tensor, nn


class Perceptron(nn.Module):
    """Images (B, 1, 8, 8) → logits (B, 10)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(64, width)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 10)

    def forward(self, images: Tensor) -> Tensor:
        hidden = torch.relu(self.norm(self.hidden(torch.flatten(images, 1))))
        logits: Tensor = self.head(hidden)
        return logits


def perceptron(width: int = 256) -> Perceptron:
    """The factory that job.yaml names."""
    return Perceptron(width)
