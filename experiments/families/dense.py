"""Models over vectors and graphs. Factories are called without arguments; docstrings say shapes and what is special."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations

from experiments.families.datasets import CLASSES, WIDTH

HIDDEN = 32


def _body(norm: type[nn.Module] | None = None, act: type[nn.Module] = nn.GELU, depth: int = 3) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for index in range(depth):
        layers.append(nn.Linear(HIDDEN if index else WIDTH, HIDDEN))
        layers += [norm(HIDDEN)] if norm is not None else []  # type: ignore[call-arg]
        layers.append(act())
    return layers


def perceptron(act: str = "GELU", outputs: int = CLASSES) -> nn.Module:
    """(B, 16) → (B, 4)."""
    return nn.Sequential(*_body(act=getattr(nn, act)), nn.Linear(HIDDEN, outputs))


def with_batch_norm() -> nn.Module:
    """BatchNorm1d after each layer."""
    return nn.Sequential(*_body(nn.BatchNorm1d), nn.Linear(HIDDEN, CLASSES))


def with_dropout() -> nn.Module:
    """Draws in its forward."""
    return nn.Sequential(*_body(), nn.Dropout(0.2), nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES))


def with_weight_norm() -> nn.Module:
    """Parametrised: weights are computed from a direction and a length."""
    body = _body()
    return nn.Sequential(*(parametrizations.weight_norm(x) if isinstance(x, nn.Linear) else x for x in body), _head())


def with_spectral_norm() -> nn.Module:
    """Its power iteration changes buffers in each forward."""
    body = _body()
    return nn.Sequential(*(parametrizations.spectral_norm(x) if isinstance(x, nn.Linear) else x for x in body), _head())


def with_old_weight_norm() -> nn.Module:
    """torch's old weight norm: a plain attribute that a hook computes before each forward."""
    body = _body()
    return nn.Sequential(*(nn.utils.weight_norm(x) if isinstance(x, nn.Linear) else x for x in body), _head())


def orthogonal() -> nn.Module:
    """A parametrisation that looks at the values of a weight when it is built."""
    square = parametrizations.orthogonal(nn.Linear(HIDDEN, HIDDEN))
    return nn.Sequential(*_body(), square, nn.ReLU(), _head())


def _head() -> nn.Module:
    return nn.Linear(HIDDEN, CLASSES)


class Residual(nn.Module):
    """Residual blocks with LayerNorm and learnt scales."""

    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Linear(WIDTH, HIDDEN)
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(HIDDEN), nn.Linear(HIDDEN, HIDDEN)) for _ in range(3))
        self.scales = nn.ParameterList(nn.Parameter(torch.tensor(0.5)) for _ in range(3))
        self.head = _head()

    def forward(self, x: Tensor) -> Tensor:
        x = self.into(x)
        for block, scale in zip(self.blocks, self.scales, strict=True):
            x = x + scale * functional.silu(block(x))
        return self.head(x)  # type: ignore[no-any-return]


class Highway(nn.Module):
    """Gated layers."""

    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Linear(WIDTH, HIDDEN)
        self.gates = nn.ModuleList(nn.Linear(HIDDEN, HIDDEN) for _ in range(3))
        self.ways = nn.ModuleList(nn.Linear(HIDDEN, HIDDEN) for _ in range(3))
        self.head = _head()

    def forward(self, x: Tensor) -> Tensor:
        x = self.into(x)
        for gate, way in zip(self.gates, self.ways, strict=True):
            open_ = torch.sigmoid(gate(x) - 1)
            x = open_ * torch.relu(way(x)) + (1 - open_) * x
        return self.head(x)  # type: ignore[no-any-return]


class Maxout(nn.Module):
    """The maximum of several linear maps."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(WIDTH, HIDDEN * 3), nn.Linear(HIDDEN, HIDDEN * 3)])
        self.head = _head()

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x).view(len(x), HIDDEN, 3).amax(-1)
        return self.head(x)  # type: ignore[no-any-return]


class Autoencoder(nn.Module):
    """(B, 16) → (B, 16) through 8 numbers; decoder layers are the encoder's transposed (tied by hand)."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, 12), nn.Linear(12, 8)
        self.bias1, self.bias2 = nn.Parameter(torch.zeros(12)), nn.Parameter(torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        code = self.second(functional.gelu(self.first(x)))
        back = functional.gelu(functional.linear(code, self.second.weight.T, self.bias1))
        return functional.linear(back, self.first.weight.T, self.bias2)


class Variational(nn.Module):
    """A variational autoencoder, which draws. It returns a dict, of which the loss takes all."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, 16))
        self.decoder = nn.Sequential(nn.Linear(8, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, WIDTH))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        mean, log_variance = self.encoder(x).chunk(2, -1)
        code = mean + torch.exp(log_variance / 2) * torch.randn_like(mean) * self.training
        return {"back": self.decoder(code), "mean": mean, "log_variance": log_variance}


def evidence(output: dict[str, Tensor], target: Tensor) -> Tensor:
    """The negative evidence lower bound of `Variational`."""
    divergence = (output["log_variance"].exp() + output["mean"] ** 2 - 1 - output["log_variance"]).mean() / 2
    return functional.mse_loss(output["back"], target) + 0.01 * divergence


class Experts(nn.Module):
    """A soft mixture of four experts."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, 4)
        self.experts = nn.ModuleList(perceptron(outputs=HIDDEN) for _ in range(4))
        self.head = _head()

    def forward(self, x: Tensor) -> Tensor:
        shares = self.gate(x).softmax(-1)
        every = torch.stack([expert(x) for expert in self.experts], 1)
        return self.head((shares[:, :, None] * every).sum(1))  # type: ignore[no-any-return]


class TwoTowers(nn.Module):
    """Two inputs, (B, 8) each: `left` and `right`."""

    def __init__(self) -> None:
        super().__init__()
        self.left_tower = nn.Sequential(nn.Linear(8, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, HIDDEN))
        self.right_tower = nn.Sequential(nn.Linear(8, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, HIDDEN))
        self.head = nn.Sequential(nn.LayerNorm(2 * HIDDEN), nn.Linear(2 * HIDDEN, CLASSES))

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        joined = torch.cat([self.left_tower(left), self.right_tower(right)], -1)
        return self.head(joined)  # type: ignore[no-any-return]


class CrossNet(nn.Module):
    """A deep and cross network, as recommenders use it."""

    def __init__(self) -> None:
        super().__init__()
        self.crosses = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.deep = nn.Sequential(*_body())
        self.head = nn.Linear(WIDTH + HIDDEN, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        crossed = x
        for cross in self.crosses:
            crossed = x * cross(crossed) + crossed
        return self.head(torch.cat([crossed, self.deep(x)], -1))  # type: ignore[no-any-return]


class HiddenFirst(nn.Module):
    """A dict whose first tensor is not what a named loss takes."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(*_body())
        self.head = _head()

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        hidden = self.body(x)
        return {"hidden": hidden, "logits": self.head(hidden)}


Answer = namedtuple("Answer", ["classes", "values"])


class TwoHeads(nn.Module):
    """A named tuple of two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(*_body())
        self.classes, self.values = _head(), nn.Linear(HIDDEN, 4)

    def forward(self, x: Tensor) -> Any:
        hidden = self.body(x)
        return Answer(self.classes(hidden), self.values(hidden))


def of_both(output: Any, target: tuple[Tensor, Tensor]) -> Tensor:
    """The loss of `TwoHeads`."""
    return functional.cross_entropy(output[0], target[0]) + functional.mse_loss(output[1], target[1])


class ArcFace(nn.Module):
    """A loss with parameters: classes as directions, with a margin."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(CLASSES, HIDDEN) / 6)

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        cosine = functional.normalize(output, dim=-1) @ functional.normalize(self.weight, dim=-1).T
        return functional.cross_entropy(8 * (cosine - 0.1 * functional.one_hot(target, CLASSES)), target)


def embedder() -> nn.Module:
    """(B, 16) → (B, 32), for `ArcFace`."""
    return nn.Sequential(*_body(), nn.Linear(HIDDEN, HIDDEN))


def partly_frozen() -> nn.Module:
    """Its first layer is not trained."""
    model = nn.Sequential(*_body(), _head())
    model[0].requires_grad_(False)
    return model


class Siamese(nn.Module):
    """One tower used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.tower = nn.Sequential(nn.Linear(8, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, HIDDEN))
        self.head = nn.Sequential(nn.GELU(), nn.Linear(2 * HIDDEN, HIDDEN), nn.GELU(), _head())

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return self.head(torch.cat([self.tower(left), self.tower(right)], -1))  # type: ignore[no-any-return]


class GraphConvolution(nn.Module):
    """Kipf and Welling's: x (B, N, 8), adjacency (B, N, N) → (B, 4, N)."""

    def __init__(self, layers: int = 3, norm: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8 if i == 0 else HIDDEN, HIDDEN) for i in range(layers))
        self.norms = nn.ModuleList(nn.BatchNorm1d(HIDDEN) if norm else nn.Identity() for _ in range(layers))
        self.head = nn.Linear(HIDDEN, CLASSES)

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = torch.relu(norm((adjacency @ layer(x)).transpose(1, 2)).transpose(1, 2))
        return self.head(x).transpose(1, 2)  # type: ignore[no-any-return]


class GraphAttention(nn.Module):
    """Velickovic's: weights of edges by a softmax over neighbours."""

    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Linear(8, HIDDEN)
        self.maps = nn.ModuleList(nn.Linear(HIDDEN, HIDDEN) for _ in range(2))
        self.scores = nn.ModuleList(nn.Linear(HIDDEN, 2) for _ in range(2))
        self.head = nn.Linear(HIDDEN, CLASSES)

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        x = self.into(x)
        for linear, score in zip(self.maps, self.scores, strict=True):
            hidden = linear(x)
            to, of = score(hidden).unbind(-1)
            raw = functional.leaky_relu(to[:, :, None] + of[:, None, :], 0.2)
            weights = raw.masked_fill(adjacency == 0, -1e9).softmax(-1)
            x = x + torch.relu(weights @ hidden)
        return self.head(x).transpose(1, 2)  # type: ignore[no-any-return]


class GraphIsomorphism(nn.Module):
    """Sums over neighbours and perceptrons."""

    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Linear(8, HIDDEN)
        self.eps = nn.ParameterList(nn.Parameter(torch.zeros(())) for _ in range(2))
        self.nets = nn.ModuleList(
            nn.Sequential(nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN)) for _ in range(2)
        )
        self.head = nn.Linear(HIDDEN, CLASSES)

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        x = self.into(x)
        for eps, net in zip(self.eps, self.nets, strict=True):
            x = x + net((1 + eps) * x + adjacency @ x)
        return self.head(x).transpose(1, 2)  # type: ignore[no-any-return]


def ordered() -> nn.Module:
    """Named layers in an OrderedDict."""
    return nn.Sequential(OrderedDict(zip("abcdefg", [*_body(act=nn.SELU), _head()], strict=True)))


def all_frozen() -> nn.Module:
    """Nothing is trained: it has to be refused."""
    return perceptron().requires_grad_(False)


def lazy() -> nn.Module:
    """A layer whose size nobody has said: it has to be refused."""
    return nn.Sequential(nn.LazyLinear(HIDDEN), nn.ReLU(), _head())


class Square(nn.Module):
    """(B, 1) → (B, 1)."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(1, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, HIDDEN), nn.Tanh())
        self.out = nn.Linear(HIDDEN, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.net(x))  # type: ignore[no-any-return]
