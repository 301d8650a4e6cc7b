"""The tiny GPT with weights that nobody trains, as in fine-tuning: at the front, in the middle and at the end."""

from torch import nn

from tests.support.jobs import tiny

FROZEN = ("words.weight", "places.weight", "blocks.1.norm2.weight", "blocks.1.up.bias", "head.bias")


def gpt() -> nn.Module:
    model = tiny.gpt()
    for name in FROZEN:
        model.get_parameter(name).requires_grad_(False)
    return model
