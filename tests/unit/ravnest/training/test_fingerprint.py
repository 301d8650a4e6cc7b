from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from ravnest.training.batches import SampleSet
from ravnest.training.fingerprint import digest, fingerprint, sampled

X, Y = torch.arange(200.0).view(100, 2), torch.arange(100)


def test_samples_are_spread_over_the_set_with_its_ends():
    assert sampled(5) == [0, 1, 2, 3, 4]
    assert sampled(10**12, 3) == [0, (10**12 - 1) // 2, 10**12 - 1]
    assert len(sampled(1000)) == 16
    assert sampled(0) == []


def test_length_and_content_count():
    whole = fingerprint(SampleSet(TensorDataset(X, Y)), SampleSet(TensorDataset(X, Y), "held_out"))
    assert whole.startswith("100 + 100 samples, ")
    others = [
        (SampleSet(TensorDataset(X[:99], Y[:99])), SampleSet(TensorDataset(X, Y), "held_out")),
        (SampleSet(TensorDataset(X, Y)), SampleSet(TensorDataset(X, Y + 1), "held_out")),
        (SampleSet(TensorDataset(X.double(), Y)), SampleSet(TensorDataset(X, Y), "held_out")),
    ]
    assert whole not in {fingerprint(*each) for each in others}
    assert len({fingerprint(*each) for each in others}) == 3


def test_random_samples_have_one_fingerprint():
    class Drawn:
        def __len__(self):
            return 8

        def __getitem__(self, index):
            return torch.rand(2), np.random.rand()

    found = fingerprint(SampleSet(Drawn()))
    torch.rand(1)
    assert fingerprint(SampleSet(Drawn())) == found != fingerprint(SampleSet(Drawn(), seed=1))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (torch.ones(2), torch.zeros(2)),
        (torch.ones(2), torch.ones(1, 2)),
        (np.ones(2), np.ones(2, dtype=np.float32)),
        ({"a": [1, 2]}, {"a": [2, 1]}),
        ({"a": 1}, {"b": 1}),
        ((1, "x"), (1, "y")),
        (b"x", b"y"),
        (None, 0),
        (1, True),
        ({1, 2}, {1, 3}),
        (SimpleNamespace(edges=torch.ones(2)), SimpleNamespace(edges=torch.zeros(2))),
        (torch.ones(2, dtype=torch.bfloat16), torch.zeros(2, dtype=torch.bfloat16)),
        (torch.tensor(1), torch.tensor(2)),
    ],
)
def test_what_differs_hashes_differently_and_again_the_same(one, other):
    assert digest(one) == digest(one) != digest(other)


def test_an_object_that_refers_to_itself_ends():
    ring = SimpleNamespace()
    ring.next = ring
    assert digest(ring) == digest(ring)
