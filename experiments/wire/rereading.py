"""A GPT whose stages read the characters again behind each cut: what a narrow cut need not carry then.

In: token ids (B, T), which cross all cuts as they are: a byte each, where the data set has them so. Out: logits. Most
of what a stream of features says is which character is where, and a stage can look that up in a table of its own. So a
bottleneck (ravnest/splitting/bottlenecks.py) passes on only the rest. All of it is code of a model, which a job names
like any other.
"""

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from experiments.harness.report import ROOT
from ravnest.factories import FactoryConfig, call

ID_BITS = 8
START_STD = 0.1
"""Of the tables, as of the GPT's own."""
CARRIED = 0.2
"""What a block passes on is made so much smaller before a table is added, so that errors of what crosses do not grow
from cut to cut."""


class RereadingGPT(nn.Module):
    """The GPT of examples/home, to whose stream each block but the last adds what a table of that place says of tokens
    and positions, and `carried` of the block's own output. The GPT's weights keep their names.
    """

    def __init__(self, gpt: nn.Module, carried: float = CARRIED) -> None:
        super().__init__()
        self.carried = carried
        self.token, self.position = gpt.get_submodule("token"), gpt.get_submodule("position")
        blocks = gpt.get_submodule("blocks")
        assert isinstance(blocks, nn.ModuleList)
        self.blocks = blocks
        self.norm, self.head = gpt.get_submodule("norm"), gpt.get_submodule("head")
        vocab, width = gpt.get_parameter("token.weight").shape
        context, _ = gpt.get_parameter("position.weight").shape
        self.again = nn.ModuleList(Table(vocab, context, width) for _ in blocks[:-1])

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, T) whole numbers of any type to (B, T, V)."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        stream = self.token(tokens.long()) + self.position(positions)
        for block, known in zip(self.blocks, [*self.again, None], strict=True):
            stream = block(stream)
            if known is not None:
                stream = self.carried * stream + known(tokens)
        logits: Tensor = self.head(self.norm(stream))
        return logits


class Table(nn.Module):
    """What a stage knows of tokens and positions by itself: (B, T) to (B, T, C)."""

    def __init__(self, vocab: int, context: int, width: int) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(vocab, width), nn.Embedding(context, width)
        for embedding in (self.token, self.position):
            nn.init.normal_(embedding.weight, std=START_STD)

    def forward(self, tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        known: Tensor = self.token(tokens.long()) + self.position(positions)
        return known


class Bytes(Dataset[tuple[Tensor, Tensor]]):
    """Samples whose inputs are ids of one byte."""

    def __init__(self, samples: Dataset[tuple[Tensor, Tensor]]) -> None:
        self._samples = samples

    def __len__(self) -> int:
        return len(self._samples)  # type: ignore[arg-type]

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        inputs, target = self._samples[index]
        return inputs.to(torch.uint8), target


def text(context: int) -> SimpleNamespace:
    """The factory of a job's data: that of examples/home, in bytes."""
    made = made_by("examples.home.data:pydoc_text", context=context)
    return SimpleNamespace(train=Bytes(made.train), held_out=Bytes(made.held_out), baselines=made.baselines)


def gpt(**sizes: int) -> RereadingGPT:
    """The factory of a job's model; the sizes are those of examples/home."""
    return RereadingGPT(made_by("examples.home.model:gpt", **sizes))


def made_by(factory: str, **arguments: int) -> Any:
    """What a job's factory returns for these arguments."""
    return call(FactoryConfig.model_validate({"factory": factory, "args": arguments}), [ROOT])
