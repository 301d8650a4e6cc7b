"""Small models that between them do what splitting must survive, and plain ways to run them whole or in stages."""

import copy
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from ravnest.splitting import CapturedModel, StageModule, capture, initial_weights

torch.set_num_threads(1)


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        batch, time, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, time, 3, 2, width // 2).permute(2, 0, 3, 1, 4)
        dropout = 0.1 if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=dropout)
        x = x + self.drop(self.out(y.transpose(1, 2).reshape(batch, time, width)))
        return x + self.drop(self.mlp(self.norm2(x)))


class GPT(nn.Module):
    def __init__(self, blocks: int = 2, width: int = 16, tied: bool = False) -> None:
        super().__init__()
        self.tokens = nn.Embedding(11, width)
        self.places = nn.Embedding(8, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 11, bias=False)
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        y += x
        return self.relu(y)


class CNN(nn.Module):
    """In-place activations and additions, batch-norm, and a transposed value between convolution and head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(inplace=True))
        self.blocks = nn.Sequential(Residual(6), Residual(6))
        self.mix = nn.Linear(6, 6)
        self.head = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(self.stem(x))
        x = self.mix(x.flatten(2).transpose(1, 2))
        return self.head(x.mean(1))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 8)
        self.lstm = nn.LSTM(8, 6, 2, batch_first=True, dropout=0.2)
        self.gru = nn.GRU(6, 6, batch_first=True)
        self.head = nn.Linear(6, 3)

    def forward(self, ids: Tensor) -> Tensor:
        x, _ = self.lstm(self.embed(ids))
        x, _ = self.gru(x)
        return self.head(x[:, -1])


class Masked(nn.Module):
    """An integer mask and a keyword input used in every layer, a 0-dim parameter, batch-dependent sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 8)
        self.scale = nn.Parameter(torch.ones(()))
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.head = nn.Linear(8, 2)

    def forward(self, ids: Tensor, *, weight: Tensor) -> Tensor:
        mask = (ids != 0).long()
        batch = ids.shape[0]
        x = self.embed(ids) * self.scale
        for layer in self.layers:
            x = x.reshape(batch, -1, 8) * mask[..., None] * weight[:, None, None]
            x = torch.tanh(layer(x)).reshape(batch * ids.shape[1], 8)
        return self.head(x.view(batch, -1, 8).sum(1)) / batch**0.5


class Pooled(nn.Module):
    """Only the batch size itself is needed behind the pooling, and no tensor there tells it."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.second = nn.Linear(6, 6)
        self.third = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        pooled = self.second(self.first(x).mean(0))
        return self.third(pooled).expand(x.shape[0], 6) * 1.0


class Moods(nn.Module):
    """Everything that differs between the modes, a branch of the user's own included; a parameter nobody uses."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.idle = nn.Linear(2, 2)
        self.second = nn.Linear(6, 6)
        self.third = nn.Linear(6, 6)
        self.instance = nn.InstanceNorm1d(3, track_running_stats=True)
        self.register_buffer("offset", torch.ones(3, 1))
        self.register_buffer("unread", torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        x = F.rrelu(F.dropout(self.first(x), 0.3, self.training), training=self.training)
        x = self.instance(x) + self.offset
        if self.training:
            x = x * torch.full((x.shape[0], 1, 1), 0.7, device=x.device).bernoulli()
        x = F.dropout1d(self.second(F.alpha_dropout(x, 0.2, self.training)), 0.2, self.training)
        x = F.scaled_dot_product_attention(x, x, x, dropout_p=0.2 if self.training else 0.0)
        return self.third(x)


class Outputs(nn.Module):
    """Constants, a plain tensor attribute, an assigned buffer, no_grad, autocast, nested outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.second = nn.Linear(6, 6)
        self.third = nn.Linear(6, 6)
        self.register_buffer("seen", torch.zeros(()))
        self.plain = torch.arange(6.0)

    def forward(self, x: Tensor) -> dict[str, object]:
        self.seen = self.seen + 1
        x = x * self.plain + torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], device=x.device)
        x = self.first(x)
        with torch.no_grad():
            still = x * 2
        with torch.autocast(x.device.type, torch.bfloat16):
            low = self.second(x)
        x = self.third(low.float() + still)
        return {"logits": x, "more": (x.mean(1), None, still)}


class Shared(nn.Module):
    """One layer applied twice, close together."""

    def __init__(self) -> None:
        super().__init__()
        self.twice = nn.Linear(6, 6)
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(6))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.twice(torch.tanh(self.twice(x))))
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


class FixedBatch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.per_sample = nn.Parameter(torch.ones(4, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.first(x) * self.per_sample


@dataclass(frozen=True)
class Case:
    make: Callable[[], nn.Module]
    args: tuple[Tensor, ...]
    kwargs: Mapping[str, Tensor] = field(default_factory=dict)
    any_batch: bool = True  # whether it works at other batch sizes than the sample's


def _ids(*shape: int) -> Tensor:
    return torch.arange(torch.Size(shape).numel()).view(shape) * 7 % 10


def _floats(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


CASES = {
    "gpt": Case(GPT, (_ids(4, 8),)),
    "cnn": Case(CNN, (_floats(4, 1, 6, 6),)),
    "recurrent": Case(Recurrent, (_ids(4, 5),)),
    "masked": Case(Masked, (_ids(4, 5),), {"weight": _floats(4)}),
    "pooled": Case(Pooled, (_floats(4, 6),)),
    "moods": Case(Moods, (_floats(4, 3, 6),)),
    "outputs": Case(Outputs, (_floats(4, 6),)),
    "shared": Case(Shared, (_floats(4, 6),)),
    "fixed batch": Case(FixedBatch, (_floats(4, 6),), any_batch=False),
}


def captured(case: Case) -> CapturedModel:
    """Captured as the planner does it: on the meta device."""
    with torch.device("meta"):
        model = case.make()
    return capture(model, case.args, case.kwargs)


@functools.cache
def captured_case(name: str) -> CapturedModel:
    """One of CASES, captured once for all tests. Nobody may change it."""
    return captured(CASES[name])


def seeded(case: Case) -> nn.Module:
    """The model with the weights that `initial_weights(case.make, 0)` gives."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return case.make()


@dataclass
class Ran:
    outputs: list[Tensor]
    gradients: dict[str, Tensor]
    buffers: dict[str, Tensor]

    def assert_equal(self, other: "Ran", *, gradient_tolerance: float = 0.0) -> None:
        """Bit for bit; gradients up to `gradient_tolerance` times the largest element of each."""
        assert len(self.outputs) == len(other.outputs)
        for number, (left, right) in enumerate(zip(self.outputs, other.outputs, strict=True)):
            assert torch.equal(left, right), f"output {number}"
        assert self.gradients.keys() == other.gradients.keys()
        for name, gradient in self.gradients.items():
            allowed = gradient_tolerance * gradient.abs().max()
            close = bool((gradient - other.gradients[name]).abs().max() <= allowed)
            assert torch.equal(gradient, other.gradients[name]) or close, name
        assert self.buffers.keys() == other.buffers.keys()
        for name, buffer in self.buffers.items():
            assert torch.equal(buffer, other.buffers[name]), name


def run_eager(
    model: nn.Module, args: Sequence[Tensor], kwargs: Mapping[str, Tensor], training: bool, used: set[str]
) -> Ran:
    """`used`: the buffers to report."""
    model = copy.deepcopy(model).train(training)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        tree = model(*(a.clone() for a in args), **{k: v.clone() for k, v in kwargs.items()})
    outputs = [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]
    if training:
        pairs = [(o, direction(o)) for o in outputs if o.requires_grad]
        torch.autograd.backward(*zip(*pairs, strict=True))
    return Ran(
        [output.detach() for output in outputs],
        {name: p.grad for name, p in model.named_parameters() if p.grad is not None},
        {name: buffer for name, buffer in model.named_buffers() if name in used},
    )


def without_buffers(ran: Ran) -> Ran:
    """For a comparison of outputs and gradients alone."""
    return Ran(ran.outputs, ran.gradients, {})


def build(model: CapturedModel, case: Case, cuts: Sequence[int]) -> list[StageModule]:
    weights = initial_weights(case.make, 0)
    return [StageModule(model.span(a, b), weights) for a, b in pairwise(cuts)]


def run_stages(stages: Sequence[StageModule], inputs: Sequence[Tensor], training: bool) -> Ran:
    """Each stage sees only contiguous copies, as if they had come over a wire; gradients alike."""
    kept = []
    values = [value.clone() for value in inputs]
    for stage in stages:
        stage.zero_grad(set_to_none=True)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        for stage in stages:
            stage.train(training)
            leaves = [
                value.detach().clone().requires_grad_(training and spec.needs_gradient)
                for value, spec in zip(values, stage.program.inputs, strict=True)
            ]
            outputs = stage(*leaves)
            for output, spec in zip(outputs, stage.program.outputs, strict=True):
                assert output.dtype == spec.dtype
                assert output.ndim == len(spec.shape)
                if stage.program.outputs_travel:
                    assert output.is_contiguous()
                if training:
                    assert output.requires_grad == spec.needs_gradient
            kept.append((leaves, outputs))
            values = list(outputs)
    if training:
        gradients = [direction(value) for value in values]
        for leaves, outputs in reversed(kept):
            needed = [(o, g) for o, g in zip(outputs, gradients, strict=True) if o.requires_grad]
            if needed:
                torch.autograd.backward(*zip(*needed, strict=True))
            gradients = [
                torch.zeros_like(leaf) if leaf.grad is None else leaf.grad.contiguous().clone() for leaf in leaves
            ]
    named = [pair for stage in stages for pair in stage.named_parameters()]
    return Ran(
        [value.detach() for value in values],
        {name: p.grad for name, p in named if p.grad is not None},
        {name: buffer for stage in stages for name, buffer in stage.named_buffers()},
    )


def direction(output: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(output.numel())
    return torch.randn(output.shape, generator=generator).to(output.dtype)
