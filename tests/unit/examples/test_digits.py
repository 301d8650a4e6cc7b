import pytest
import torch

from examples.digits.data import digits
from examples.digits.model import cnn


def test_the_split_is_seeded_and_whole() -> None:
    first, second = digits(seed=1), digits(seed=1)
    assert (len(first.train), len(first.held_out)) == (1437, 360)
    assert all(torch.equal(a, b) for a, b in zip(first.train.tensors, second.train.tensors, strict=True))
    assert first.baselines["class frequencies"] == pytest.approx(2.3, abs=0.05)  # about log 10


def test_the_network_maps_images_to_logits() -> None:
    images, labels = digits().train[:3]
    assert images.shape == (3, 1, 8, 8)
    assert float(images.max()) == 1.0
    assert cnn()(images).shape == (3, 10)
    assert labels.dtype == torch.long
