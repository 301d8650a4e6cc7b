"""Convolutional models, small. Each takes (B, 3, 16, 16) unless it says otherwise, and gives (B, 4)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from experiments.families.datasets import CLASSES, HELD_OUT

assert HELD_OUT % 32 == 0  # held-out batches are whole, so that a batch of fixed size is evaluated on all samples


def _norm(kind: str, width: int) -> nn.Module:
    made = {
        "batch": lambda: nn.BatchNorm2d(width),
        "group": lambda: nn.GroupNorm(4, width),
        "instance": lambda: nn.InstanceNorm2d(width, affine=True),
        "instance_tracked": lambda: nn.InstanceNorm2d(width, affine=True, track_running_stats=True),
        "none": nn.Identity,
    }
    return made[kind]()


def _head(width: int) -> nn.Module:
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, CLASSES))


def lenet() -> nn.Module:
    """Convolutions, max-pools, and a perceptron."""
    return nn.Sequential(
        *(nn.Conv2d(3, 6, 5, padding=2), nn.Tanh(), nn.MaxPool2d(2), nn.Conv2d(6, 12, 3, padding=1), nn.Tanh()),
        *(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12 * 16, 32), nn.Tanh(), nn.Linear(32, CLASSES)),
    )


def vgg(norm: str = "batch") -> nn.Module:
    """Blocks of 3×3 convolutions."""
    layers: list[nn.Module] = []
    before = 3
    for width in (8, 8, 16, 16):
        layers += [nn.Conv2d(before, width, 3, padding=1), _norm(norm, width), nn.ReLU()]
        layers += [nn.MaxPool2d(2)] if len(layers) % 2 == 0 else []
        before = width
    return nn.Sequential(*layers, _head(16))


class Residual(nn.Module):
    """ResNet's basic blocks."""

    def __init__(self, norm: str = "batch", width: int = 12) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.convs = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(4))
        self.norms = nn.ModuleList(_norm(norm, width) for _ in range(5))
        self.head = _head(width)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.norms[0](self.stem(x)))
        for first in (0, 2):
            inner = functional.relu(self.norms[first + 1](self.convs[first](x)))
            x = functional.relu(x + self.norms[first + 2](self.convs[first + 1](inner)))
        return self.head(x)  # type: ignore[no-any-return]


class PreActivation(nn.Module):
    """ResNet of the second kind: norm and activation before each convolution, with strides."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        widths = [8, 8, 16, 16]
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for width in [8, *widths[:-1]])
        self.convs = nn.ModuleList(
            nn.Conv2d(a, b, 3, stride=b // a, padding=1) for a, b in zip([8, *widths], widths, strict=False)
        )
        self.shorts = nn.ModuleList(
            nn.Conv2d(a, b, 1, stride=b // a) for a, b in zip([8, *widths], widths, strict=False)
        )
        self.head = _head(16)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for norm, conv, short in zip(self.norms, self.convs, self.shorts, strict=True):
            x = short(x) + conv(functional.relu(norm(x)))
        return self.head(x)  # type: ignore[no-any-return]


class Dense(nn.Module):
    """DenseNet: each layer sees all before it."""

    def __init__(self, layers: int = 5, growth: int = 8, norm: str = "batch") -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, growth, 3, padding=1, bias=False)
        self.norms = nn.ModuleList(_norm(norm, growth * (i + 1)) for i in range(layers))
        self.convs = nn.ModuleList(nn.Conv2d(growth * (i + 1), growth, 3, padding=1, bias=False) for i in range(layers))
        self.last = _norm(norm, growth * (layers + 1))
        self.head = _head(growth * (layers + 1))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for norm, conv in zip(self.norms, self.convs, strict=True):
            x = torch.cat([x, conv(functional.relu(norm(x)))], 1)
        return self.head(functional.relu(self.last(x)))  # type: ignore[no-any-return]


class Inception(nn.Module):
    """Parallel convolutions of several sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 12, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.ModuleList([nn.Conv2d(12, 4, 1), nn.Conv2d(12, 4, 3, padding=1), nn.Conv2d(12, 4, 5, padding=2)])
            for _ in range(2)
        )
        self.head = _head(12)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.stem(x))
        for block in self.blocks:
            x = functional.relu(torch.cat([conv(x) for conv in block], 1))  # type: ignore[union-attr]
        return self.head(x)  # type: ignore[no-any-return]


class Squeeze(nn.Module):
    """SqueezeNet's fire modules."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.squeezes = nn.ModuleList(nn.Conv2d(16, 4, 1) for _ in range(2))
        self.ones = nn.ModuleList(nn.Conv2d(4, 8, 1) for _ in range(2))
        self.threes = nn.ModuleList(nn.Conv2d(4, 8, 3, padding=1) for _ in range(2))
        self.head = nn.Conv2d(16, CLASSES, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.max_pool2d(functional.relu(self.stem(x)), 2)
        for squeeze, one, three in zip(self.squeezes, self.ones, self.threes, strict=True):
            small = functional.relu(squeeze(x))
            x = functional.relu(torch.cat([one(small), three(small)], 1))
        return self.head(x).mean((2, 3))  # type: ignore[no-any-return]


class Mobile(nn.Module):
    """MobileNet's inverted residuals, with squeeze and excitation (EfficientNet) if wanted."""

    def __init__(self, excite: bool = False) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                *(nn.Conv2d(8, 24, 1, bias=False), nn.BatchNorm2d(24), nn.Hardswish()),
                *(nn.Conv2d(24, 24, 3, padding=1, groups=24, bias=False), nn.BatchNorm2d(24), nn.Hardswish()),
                *([_Excite(24)] if excite else []),
                *(nn.Conv2d(24, 8, 1, bias=False), nn.BatchNorm2d(8)),
            )
            for _ in range(2)
        )
        self.head = _head(8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)  # type: ignore[no-any-return]


class _Excite(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(width, 4, 1), nn.Conv2d(4, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        scale = self.up(functional.relu(self.down(x.mean((2, 3), keepdim=True))))
        return x * torch.sigmoid(scale)


class Shuffle(nn.Module):
    """ShuffleNet: grouped convolutions and a permutation of channels."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.grouped = nn.ModuleList(nn.Conv2d(16, 16, 3, padding=1, groups=4) for _ in range(3))
        self.norms = nn.ModuleList(nn.BatchNorm2d(16) for _ in range(3))
        self.head = _head(16)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for conv, norm in zip(self.grouped, self.norms, strict=True):
            y = functional.relu(norm(conv(x)))
            x = x + functional.channel_shuffle(y, 4)
        return self.head(x)  # type: ignore[no-any-return]


class ConvNext(nn.Module):
    """Depthwise 7×7, LayerNorm over channels, learnt scales of the residuals."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 2, stride=2)
        self.depthwise = nn.ModuleList(nn.Conv2d(16, 16, 7, padding=3, groups=16) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(16) for _ in range(2))
        self.ups = nn.ModuleList(nn.Linear(16, 32) for _ in range(2))
        self.downs = nn.ModuleList(nn.Linear(32, 16) for _ in range(2))
        self.gamma = nn.ParameterList(nn.Parameter(0.5 * torch.ones(16)) for _ in range(2))
        self.head = _head(16)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for deep, norm, up, down, gamma in zip(
            self.depthwise, self.norms, self.ups, self.downs, self.gamma, strict=True
        ):
            y = down(functional.gelu(up(norm(deep(x).permute(0, 2, 3, 1)))))
            x = x + (gamma * y).permute(0, 3, 1, 2)
        return self.head(x)  # type: ignore[no-any-return]


class UNet(nn.Module):
    """(B, 3, 16, 16) → (B, outputs, 16, 16): down, up, and bridges that reach across."""

    def __init__(self, outputs: int = 2) -> None:
        super().__init__()
        self.down1, self.down2 = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 16, 3, padding=1)
        self.middle = nn.Conv2d(16, 16, 3, padding=1)
        self.lift = nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.up = nn.Conv2d(16, 8, 3, padding=1)
        self.out = nn.Conv2d(8, outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        one = functional.relu(self.down1(x))
        two = functional.relu(self.down2(functional.max_pool2d(one, 2)))
        lifted = self.lift(functional.relu(self.middle(two)))
        return self.out(functional.relu(self.up(torch.cat([one, lifted], 1))))  # type: ignore[no-any-return]


def fully_convolutional() -> nn.Module:
    """(B, 3, H, W) → (B, 2, H, W), with dilated convolutions."""
    return nn.Sequential(
        *(nn.Conv2d(3, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 12, 3, padding=2, dilation=2), nn.ReLU()),
        nn.Conv2d(12, 2, 1),
    )


class UpSampling(nn.Module):
    """Super-resolution: strided, then pixel shuffle."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.body, self.out = nn.Conv2d(3, 16, 2, 2), nn.Conv2d(16, 16, 3, padding=1), nn.Conv2d(16, 12, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.down(x))
        y = y + functional.relu(self.body(y))
        return functional.pixel_shuffle(self.out(y), 2)


def waves() -> nn.Module:
    """(B, 2, 32) → (B, 4): one-dimensional, with growing dilation, as WaveNet's."""
    return nn.Sequential(
        *(nn.Conv1d(2, 12, 3, padding=1), nn.ReLU(), nn.Conv1d(12, 12, 3, padding=2, dilation=2), nn.ReLU()),
        *(nn.Conv1d(12, 12, 3, padding=4, dilation=4), nn.ReLU(), nn.AdaptiveMaxPool1d(1), nn.Flatten()),
        nn.Linear(12, CLASSES),
    )


def volumes() -> nn.Module:
    """(B, 1, 4, 16, 16) → (B, 4)."""
    return nn.Sequential(
        *(nn.Conv3d(1, 8, 3, padding=1), nn.BatchNorm3d(8), nn.ReLU(), nn.MaxPool3d(2)),
        *(nn.Conv3d(8, 8, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(8, CLASSES)),
    )


def grey() -> nn.Module:
    """(B, 1, 16, 16) → (B, 4)."""
    return nn.Sequential(
        *(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(8 * 64, CLASSES)),
    )


class Wrapped(nn.Module):
    """An image model that takes `pixel_values` by keyword."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Residual("group")

    def forward(self, pixel_values: Tensor) -> dict[str, Tensor]:
        return {"logits": self.inner(pixel_values)}
