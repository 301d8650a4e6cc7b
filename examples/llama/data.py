"""Python's help texts, byte by byte, as a next-token task with no tokenizer to download."""

from pydoc_data.topics import topics

import torch
from torch import Tensor
from torch.utils.data import Dataset


class Windows(Dataset[tuple[Tensor, Tensor]]):
    """Consecutive windows of `context` bytes as ids from 0 to 255; the target is the window one byte on."""

    def __init__(self, ids: Tensor, context: int) -> None:
        self.ids, self.context = ids, context

    def __len__(self) -> int:
        return (len(self.ids) - 1) // self.context

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if not 0 <= index < len(self):
            raise IndexError(index)
        window = self.ids[index * self.context : (index + 1) * self.context + 1].long()
        return window[:-1], window[1:]


class Text:
    """What a job's data factory returns: the first nine tenths to train on, the rest held out."""

    def __init__(self, ids: Tensor, context: int) -> None:
        split = len(ids) * 9 // 10
        self.train = Windows(ids[:split], context)
        self.held_out = Windows(ids[split:], context)


def pydoc_bytes(context: int = 64) -> Text:
    """The factory that job.yaml names."""
    text = "\n".join(topics[name] for name in sorted(topics))
    return Text(torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8), context)
