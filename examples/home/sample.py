"""Writes a little text with the trained model: what job.yaml's `sample` names, called after training."""

import torch
from torch import nn


def generate(model: nn.Module, data: object, characters: int = 200) -> str:
    """`characters` characters drawn one by one from the model at temperature 0.8, from a fixed seed."""
    context, decode = data.context, data.decode  # type: ignore[attr-defined]  # data is what `pydoc_text` returned
    draw = torch.Generator().manual_seed(0)
    ids = torch.zeros(1, 1, dtype=torch.long)  # id 0 is the newline
    model.eval()
    with torch.no_grad():
        for _ in range(characters):
            logits = model(ids[:, -context:])[0, -1]
            drawn = torch.multinomial(torch.softmax(logits / 0.8, dim=0), 1, generator=draw)
            ids = torch.cat([ids, drawn[None]], dim=1)
    text: str = decode(ids[0, 1:])
    return text
