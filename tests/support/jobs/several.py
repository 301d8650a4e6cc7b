"""Models that take several inputs, and data that bring them by position or by keyword; sequences of uneven length."""

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

WORDS, CONTEXT = 11, 8
CLASSES = 3


class Masked(nn.Module):
    """An integer input and a truth mask alive across every cut, a parameter without dimensions, a frozen one."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 12)
        self.kinds = nn.Embedding(2, 12)
        self.scale = nn.Parameter(torch.ones(()))
        self.offset = nn.Parameter(torch.full((12,), 0.1), requires_grad=False)
        self.layers = nn.ModuleList(nn.Linear(12, 12) for _ in range(layers))
        self.temperature = nn.Parameter(torch.tensor(0.5))
        self.head = nn.Linear(12, WORDS)

    def forward(self, ids: Tensor, kind: Tensor, mask: Tensor) -> Tensor:
        x = self.words(ids) * self.scale + self.kinds(kind) + self.offset
        keep = mask.bool()
        for layer in self.layers:
            x = torch.where(keep[..., None], torch.tanh(layer(x)) * (2 - kind[..., None]), x)
        return self.head(x) * self.temperature


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 12)
        self.lower, self.upper = nn.LSTM(12, 12, batch_first=True), nn.LSTM(12, 12, batch_first=True)
        self.head = nn.Linear(12, WORDS)

    def forward(self, ids: Tensor) -> Tensor:
        x, _ = self.lower(self.words(ids))
        x, state = self.upper(x)
        return self.head(x + state[0].transpose(0, 1))


class Rows(Dataset[Any]):
    """(inputs, target) of each row; `names` makes the inputs a dict."""

    def __init__(self, columns: list[Tensor], target: Tensor, names: list[str] | None) -> None:
        self.columns, self.target, self.names = columns, target, names

    def __len__(self) -> int:
        return len(self.target)

    def __getitem__(self, index: int) -> Any:
        inputs = tuple(column[index] for column in self.columns)
        return (inputs if self.names is None else dict(zip(self.names, inputs, strict=True))), self.target[index]


def masked(layers: int = 4) -> nn.Module:
    return Masked(layers)


def recurrent() -> nn.Module:
    return Recurrent()


def counting(names: list[str] | None = None, samples: int = 240, held_out: int = 10) -> SimpleNamespace:
    """Sequences that count up (kind 0) or stand still (kind 1), cut off at a length of their own by the mask.

    `names`: the inputs to bring by keyword, in this order, of ids, kind and mask.
    """
    draw = torch.Generator().manual_seed(7)
    count = samples + held_out
    kind = torch.randint(2, (count, 1), generator=draw)
    start = torch.randint(WORDS, (count, 1), generator=draw)
    ids = (start + (1 - kind) * torch.arange(CONTEXT + 1)) % WORDS
    mask = (torch.arange(CONTEXT) < torch.randint(3, CONTEXT + 1, (count, 1), generator=draw)).long()
    target = torch.where(mask.bool(), ids[:, 1:], -100)
    columns = {"ids": ids[:, :-1], "kind": kind.expand(-1, CONTEXT), "mask": mask}
    chosen = [columns[name] for name in names or columns]
    split = (slice(0, samples), slice(samples, count))
    parts = [Rows([column[rows] for column in chosen], target[rows], names) for rows in split]
    return SimpleNamespace(train=parts[0], held_out=parts[1])


def sentences(classify: bool = False, samples: int = 240, held_out: int = 10) -> SimpleNamespace:
    """`counting` as Hugging Face models take it: input_ids and attention_mask by keyword.

    `classify`: the target is the sequence's first word modulo CLASSES.
    """
    data = counting(None, samples, held_out)
    parts = []
    for rows in (data.train, data.held_out):
        ids, _, mask = rows.columns
        target = ids[:, 0] % CLASSES if classify else rows.target
        parts.append(Rows([ids, mask], target, ["input_ids", "attention_mask"]))
    return SimpleNamespace(train=parts[0], held_out=parts[1])
