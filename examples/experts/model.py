"""One expert: a feed-forward block. Hosts import this module, and trainers do not."""

from torch import Tensor, nn


class Expert(nn.Module):
    """A residual block."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        """(samples, width) → (samples, width)"""
        return x + self.layers(x)


def expert(width: int) -> nn.Module:
    """The factory that experts.yaml names."""
    return Expert(width)
