"""Real text that ships with Python, as a next-character task: the help topics behind `help('LAMBDA')` and
the like.

The text differs a little from one Python version to the next, so the vocabulary is fixed: newline, the 95
printable ASCII characters, and one id for everything else. The first nine tenths are for training, the rest
is held out.
"""

from pydoc_data.topics import topics

import torch
from torch import Tensor
from torch.utils.data import Dataset

CHARACTERS = "\n" + "".join(map(chr, range(32, 127)))
OTHER = len(CHARACTERS)
VOCAB = len(CHARACTERS) + 1
_IDS = {character: i for i, character in enumerate(CHARACTERS)}


def encode(text: str) -> Tensor:
    """Ids (n,) int64 of a text's characters."""
    return torch.tensor([_IDS.get(character, OTHER) for character in text])


def decode(ids: Tensor) -> str:
    """The text of ids (n,); what was not in the vocabulary reads as `?`."""
    return "".join(CHARACTERS[i] if i < OTHER else "?" for i in ids.tolist())


class Windows(Dataset[tuple[Tensor, Tensor]]):
    """Windows of `context` characters, one each `stride`; the target is the same window one character on."""

    def __init__(self, ids: Tensor, context: int, stride: int) -> None:
        if len(ids) <= context:
            raise ValueError(f"a context of {context} characters needs a longer text than {len(ids)}")
        self.ids, self.context, self.stride = ids, context, stride

    def __len__(self) -> int:
        return (len(self.ids) - 1 - self.context) // self.stride + 1

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if not 0 <= index < len(self):
            raise IndexError(index)
        start = index * self.stride
        window = self.ids[start : start + self.context + 1]
        return window[:-1], window[1:]


class Text:
    """What a job's data factory returns: `train`, `held_out`, and the losses to beat in `baselines`.

    `context` and `decode` are for the example's own sample.py.
    """

    def __init__(self, ids: Tensor, context: int) -> None:
        split = len(ids) * 9 // 10
        self.context, self.decode = context, decode
        self.train = Windows(ids[:split], context, stride=1)
        self.held_out = Windows(ids[split:], context, stride=context)
        self.baselines = {"bigram model": bigram_loss(ids[:split], ids[split:])}


def pydoc_text(context: int = 64) -> Text:
    """The factory that job.yaml names."""
    return Text(encode("\n".join(topics[name] for name in sorted(topics))), context)


def bigram_loss(train: Tensor, held_out: Tensor) -> float:
    """Mean nats per held-out character of the bigram model of `train`, smoothed as Witten and Bell do.

    P(b | a) = (n(a, b) + k(a)·P(b)) / (n(a) + k(a)), where k(a) counts the distinct successors of a, and P(b)
    is the add-one unigram. It is stronger than an add-one bigram, so it is the harder one to beat.
    """
    pairs = torch.bincount(train[:-1] * VOCAB + train[1:], minlength=VOCAB * VOCAB).view(VOCAB, VOCAB).double()
    unigram = (torch.bincount(train, minlength=VOCAB).double() + 1) / (len(train) + VOCAB)
    total = pairs.sum(dim=1, keepdim=True)
    distinct = (pairs > 0).sum(dim=1, keepdim=True).clamp(min=1)
    probability = (pairs + distinct * unigram) / (total + distinct)
    return -probability[held_out[:-1], held_out[1:]].log().mean().item()
