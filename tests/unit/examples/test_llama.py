import torch

from examples.llama.data import pydoc_bytes


def test_windows_are_bytes_and_follow_each_other() -> None:
    text = pydoc_bytes(context=16)
    inputs, target = text.train[0]
    assert (inputs.dtype, inputs.shape) == (torch.long, (16,))
    assert torch.equal(inputs[1:], target[:-1])
    assert text.train[1][0][0] == target[-1]
    assert len(text.train) > 8 * len(text.held_out)
