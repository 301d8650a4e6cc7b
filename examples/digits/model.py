"""A small convolutional network with batch-norm, in plain PyTorch. Nothing in it knows ravnest."""

import torch
from torch import Tensor, nn


def _block(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    """(B, inputs, S, S) → (B, outputs, S/stride, S/stride)."""
    convolution = nn.Conv2d(inputs, outputs, kernel_size=3, stride=stride, padding=1, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU())


class DigitsCNN(nn.Module):
    """Images (B, 1, 8, 8) → logits (B, 10). One residual step: a cut inside it passes two tensors on."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.stem = _block(1, width, stride=1)
        self.first = _block(width, width, stride=1)
        self.second = _block(width, width, stride=1)
        self.down = _block(width, 2 * width, stride=2)
        self.last = _block(2 * width, 2 * width, stride=2)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(2 * width * 2 * 2, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = self.stem(images)
        x = x + self.second(self.first(x))
        x = self.last(self.down(x))
        logits: Tensor = self.head(self.dropout(torch.flatten(x, 1)))
        return logits


def cnn(width: int = 24, dropout: float = 0.1) -> DigitsCNN:
    """The factory that job.yaml names."""
    return DigitsCNN(width, dropout)
