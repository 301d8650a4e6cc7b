"""Models over sequences: of words (B, 12) or of vectors (B, 12, 16). They give (B, 12, words) or (B, 4)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from experiments.families.datasets import CLASSES, LENGTH, WIDTH, WORDS

HIDDEN = 32


class Recurrent(nn.Module):
    """Words through an LSTM, GRU or RNN of two layers."""

    def __init__(self, kind: str = "LSTM", bidirectional: bool = False) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, HIDDEN)
        self.net = getattr(nn, kind)(HIDDEN, HIDDEN, num_layers=2, batch_first=True, bidirectional=bidirectional)
        self.head = nn.Linear(HIDDEN * (1 + bidirectional), WORDS)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.net(self.words(ids))[0])  # type: ignore[no-any-return]


class Tracker(nn.Module):
    """Vectors through a GRU, of which the last state is classified."""

    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Linear(WIDTH, HIDDEN)
        self.net = nn.GRU(HIDDEN, HIDDEN, batch_first=True)
        self.head = nn.Linear(HIDDEN, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.net(self.into(x))[1][-1])  # type: ignore[no-any-return]


class Cells(nn.Module):
    """An LSTMCell in a loop of Python."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(WIDTH, HIDDEN)
        self.head = nn.Sequential(nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        state = (x.new_zeros(len(x), HIDDEN), x.new_zeros(len(x), HIDDEN))
        for step in x.unbind(1):
            state = self.cell(step, state)
        return self.head(state[0])  # type: ignore[no-any-return]


class Bag(nn.Module):
    """Words, averaged (fastText)."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, HIDDEN, padding_idx=0)
        self.head = nn.Sequential(nn.LayerNorm(HIDDEN * 2), nn.Linear(HIDDEN * 2, HIDDEN), nn.ReLU())
        self.out = nn.Linear(HIDDEN, CLASSES)

    def forward(self, ids: Tensor) -> Tensor:
        words = self.words(ids)
        return self.out(self.head(torch.cat([words.mean(1), words[:, 0]], -1)))  # type: ignore[no-any-return]


class TextConvolution(nn.Module):
    """Kim's: convolutions over words, and their maxima."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, HIDDEN), nn.Embedding(LENGTH, HIDDEN)
        self.convs = nn.ModuleList(nn.Conv1d(HIDDEN, 16, size) for size in (2, 3))
        self.head = nn.Linear(32, CLASSES)

    def forward(self, ids: Tensor) -> Tensor:
        x = (self.words(ids) + self.places.weight).transpose(1, 2)
        return self.head(torch.cat([functional.relu(conv(x)).amax(-1) for conv in self.convs], -1))  # type: ignore[no-any-return]


class Transformer(nn.Module):
    """A language model of blocks that are written by hand: attention, then a perceptron or gated units.

    `places`: learnt, rotary or alibi. `norm`: before the block or after it. `tied`: the head is the table of words.
    """

    def __init__(
        self,
        places: str = "learnt",
        norm: str = "before",
        gated: bool = False,
        tied: bool = False,
        groups: int = 2,
        blocks: int = 2,
        words: int = WORDS,
        dropout: float = 0.0,
        causal: bool = True,
    ) -> None:
        super().__init__()
        self.words = nn.Embedding(words, HIDDEN)
        self.places = nn.Embedding(LENGTH, HIDDEN) if places == "learnt" else None
        self.blocks = nn.ModuleList(_Block(places, norm, gated, groups, dropout, causal) for _ in range(blocks))
        self.norm = nn.LayerNorm(HIDDEN)
        self.head = nn.Linear(HIDDEN, words, bias=False)
        if tied:
            nn.init.normal_(self.words.weight, std=0.1)
            self.head.weight = self.words.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        if self.places is not None:
            x = x + self.places(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))  # type: ignore[no-any-return]


class _Block(nn.Module):
    def __init__(self, places: str, norm: str, gated: bool, groups: int, dropout: float, causal: bool) -> None:
        super().__init__()
        self.kind, self.order, self.groups, self.causal = places, norm, groups, causal
        self.norm1 = nn.RMSNorm(HIDDEN) if gated else nn.LayerNorm(HIDDEN)
        self.norm2 = nn.RMSNorm(HIDDEN) if gated else nn.LayerNorm(HIDDEN)
        self.query, self.keys = nn.Linear(HIDDEN, HIDDEN), nn.Linear(HIDDEN, 2 * HIDDEN // 4 * groups)
        self.out = nn.Linear(HIDDEN, HIDDEN)
        self.up, self.down = nn.Linear(HIDDEN, 2 * HIDDEN), nn.Linear(HIDDEN if gated else 2 * HIDDEN, HIDDEN)
        self.gated = gated
        self.dropout = nn.Dropout(dropout)
        angles = torch.arange(LENGTH)[:, None] / 100 ** (torch.arange(4) / 4)
        self.register_buffer("cosines", angles.cos().repeat(1, 2), persistent=False)
        self.register_buffer("sines", angles.sin().repeat(1, 2), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.order == "after":
            x = self.norm1(x + self.attend(x))
            return self.norm2(x + self.feed(x))  # type: ignore[no-any-return]
        x = x + self.dropout(self.attend(self.norm1(x)))
        return x + self.dropout(self.feed(self.norm2(x)))  # type: ignore[no-any-return]

    def attend(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        query = self.query(x).view(batch, length, 4, 8).transpose(1, 2)
        keys, values = (
            part.view(batch, length, self.groups, 8).transpose(1, 2).repeat_interleave(4 // self.groups, 1)
            for part in self.keys(x).chunk(2, -1)
        )
        if self.kind == "rotary":
            query, keys = self.turned(query), self.turned(keys)
        scores = query @ keys.transpose(-1, -2) / math.sqrt(8)
        at = torch.arange(length, device=x.device)
        if self.kind == "alibi":
            slopes = 2.0 ** -torch.arange(1, 5, device=x.device)
            scores = scores - slopes[:, None, None] * (at[:, None] - at[None, :]).abs()
        if self.causal:
            scores = scores.masked_fill(at[None, :] > at[:, None], float("-inf"))
        mixed = (scores.softmax(-1) @ values).transpose(1, 2).reshape(batch, length, HIDDEN)
        return self.out(mixed)  # type: ignore[no-any-return]

    def turned(self, x: Tensor) -> Tensor:
        one, other = x.chunk(2, -1)
        return x * self.cosines + torch.cat([-other, one], -1) * self.sines

    def feed(self, x: Tensor) -> Tensor:
        wide = self.up(x)
        if self.gated:
            gate, wide = wide.chunk(2, -1)
            return self.down(functional.silu(gate) * wide)  # type: ignore[no-any-return]
        return self.down(functional.gelu(wide))  # type: ignore[no-any-return]


class TorchEncoder(nn.Module):
    """torch's own TransformerEncoder, with a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, HIDDEN)
        self.places = nn.Parameter(torch.randn(LENGTH, HIDDEN) / 6)
        layer = nn.TransformerEncoderLayer(HIDDEN, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.net = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(HIDDEN, WORDS)

    def forward(self, ids: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        return self.head(self.net(self.words(ids) + self.places, mask=mask, is_causal=True))  # type: ignore[no-any-return]


class TorchTransformer(nn.Module):
    """torch's own encoder and decoder, of vectors, with learnt queries."""

    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Linear(WIDTH, HIDDEN)
        self.queries = nn.Parameter(torch.randn(1, HIDDEN))
        self.net = nn.Transformer(HIDDEN, 4, 1, 1, 64, dropout=0.0, batch_first=True)
        self.head = nn.Linear(HIDDEN, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        queries = self.queries.expand(len(x), -1, -1)
        return self.head(self.net(self.into(x), queries)[:, 0])  # type: ignore[no-any-return]


class LinearAttention(nn.Module):
    """Attention without a softmax, by sums that run along the sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, HIDDEN)
        self.maps = nn.ModuleList(nn.Linear(HIDDEN, 3 * 16) for _ in range(2))
        self.outs = nn.ModuleList(nn.Linear(16, HIDDEN) for _ in range(2))
        self.head = nn.Linear(HIDDEN, WORDS)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        for mapped, out in zip(self.maps, self.outs, strict=True):
            query, key, value = mapped(x).chunk(3, -1)
            query, key = functional.elu(query) + 1, functional.elu(key) + 1
            state = (key[..., :, None] * value[..., None, :]).cumsum(1)
            weight = (query * key.cumsum(1)).sum(-1, keepdim=True)
            x = x + out((query[..., None, :] @ state)[..., 0, :] / (weight + 1e-6))
        return self.head(x)  # type: ignore[no-any-return]


class StateSpace(nn.Module):
    """A gated linear recurrence along the sequence (S4, Mamba), in a loop of Python."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, HIDDEN)
        self.decay = nn.Parameter(torch.linspace(-2, 2, HIDDEN))
        self.gates, self.out = nn.Linear(HIDDEN, HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.head = nn.Linear(HIDDEN, WORDS)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        state, states = torch.zeros_like(x[:, 0]), []
        for step in x.unbind(1):
            state = torch.sigmoid(self.decay) * state + step
            states.append(state)
        mixed = torch.stack(states, 1) * functional.silu(self.gates(x))
        return self.head(x + self.out(mixed))  # type: ignore[no-any-return]


class Fourier(nn.Module):
    """FNet: complex numbers inside the forward."""

    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Linear(WIDTH, HIDDEN)
        self.feeds = nn.ModuleList(nn.Sequential(nn.LayerNorm(HIDDEN), nn.Linear(HIDDEN, HIDDEN)) for _ in range(2))
        self.head = nn.Linear(HIDDEN, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.into(x)
        for feed in self.feeds:
            x = x + functional.gelu(feed(torch.fft.fft2(x).real / LENGTH))
        return self.head(x.mean(1))  # type: ignore[no-any-return]


class Mixer(nn.Module):
    """MLP-Mixer over vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Linear(WIDTH, HIDDEN)
        self.along = nn.ModuleList(nn.Linear(LENGTH, LENGTH) for _ in range(2))
        self.across = nn.ModuleList(nn.Linear(HIDDEN, HIDDEN) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(HIDDEN) for _ in range(2))
        self.head = nn.Linear(HIDDEN, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.into(x)
        for along, across, norm in zip(self.along, self.across, self.norms, strict=True):
            x = x + functional.gelu(along(norm(x).transpose(1, 2))).transpose(1, 2)
            x = x + functional.gelu(across(x))
        return self.head(x.mean(1))  # type: ignore[no-any-return]


class Vision(nn.Module):
    """ViT: patches, a token of the class, and places."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, HIDDEN, 4, 4)
        self.token = nn.Parameter(torch.zeros(1, 1, HIDDEN))
        self.places = nn.Parameter(torch.randn(17, HIDDEN) / 6)
        layer = nn.TransformerEncoderLayer(HIDDEN, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.net = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(HIDDEN, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token.expand(len(x), -1, -1), tokens], 1) + self.places
        return self.head(self.net(tokens)[:, 0])  # type: ignore[no-any-return]


class Choosing(nn.Module):
    """A mixture of experts with a hard choice of two, by masks."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, HIDDEN)
        self.gate = nn.Linear(HIDDEN, 4)
        self.experts = nn.Parameter(torch.randn(4, HIDDEN, HIDDEN) / 6)
        self.head = nn.Linear(HIDDEN, WORDS)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        best, which = self.gate(x).topk(2, -1)
        shares = torch.zeros(*x.shape[:2], 4, device=x.device).scatter(-1, which, best.softmax(-1))
        every = torch.einsum("btc,ecd->bted", x, self.experts)
        return self.head(x + (shares[..., None] * functional.gelu(every)).sum(2))  # type: ignore[no-any-return]


class Masked(nn.Module):
    """A GPT that takes `input_ids` and `attention_mask` by keyword, as transformers' models do."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Transformer()

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
        return {"logits": self.inner(input_ids) * attention_mask[..., None]}
