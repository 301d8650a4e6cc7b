"""A model of float64 with what few models have: complex numbers at a cut, a frozen layer, a counter, own state."""

from types import SimpleNamespace

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

TENTH = 0.1
"""A number that float32 does not hold as float64 does."""


class Odd(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.frozen, self.third = (nn.Linear(4, 4) for _ in range(3))
        self.head = nn.Linear(4, 3)
        self.frozen.requires_grad_(False)
        self.register_buffer("scale", torch.full((4,), TENTH, dtype=torch.float64))
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        x = torch.tanh(self.first(x.double()))
        x = torch.tanh(self.frozen(x))
        z = torch.fft.fft(self.third(x))
        return self.head(torch.fft.ifft(z).real + self.scale)

    def get_extra_state(self) -> Tensor:
        return torch.tensor([TENTH], dtype=torch.float64, device="cpu")

    def set_extra_state(self, state: Tensor) -> None:
        assert float(state) == TENTH


def data() -> SimpleNamespace:
    generator = torch.Generator().manual_seed(0)

    def part(samples: int) -> TensorDataset:
        x = torch.randn(samples, 4, generator=generator)
        return TensorDataset(x, x[:, :3].argmax(1))

    return SimpleNamespace(train=part(64), held_out=part(19))
