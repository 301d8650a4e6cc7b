"""Which batches are asked of which reader; tests/integration/test_readers.py has processes that read them."""

from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import TensorDataset

from ravnest.job.readers import ReadAhead
from ravnest.training.batches import BatchSource, SampleSet
from ravnest.training.sampler import EvaluationBatches, Sampler

ROWS = TensorDataset(torch.arange(60.0).view(30, 2), torch.arange(30))
DATA = SimpleNamespace(train=SampleSet(ROWS), held_out=SampleSet(ROWS, "held_out"))
SPANS, SAMPLER = EvaluationBatches(30, 4), Sampler(30, 2, (0.0, 1.0), 4)


class Reader:
    def __init__(self):
        self.asked, self.most = [], 0

    def ask(self, part, indices, epoch):
        self.asked.append((part, list(indices), epoch))
        self.most = max(self.most, len(self.asked))

    def batch(self):
        part, indices, epoch = self.asked.pop(0)
        return getattr(DATA, part).batch(indices, epoch)

    def close(self):
        self.asked = None


@pytest.mark.parametrize("count", [1, 2, 5])
def test_whatever_their_number_the_batches_are_the_same_and_few_wait(count):
    readers = [Reader() for _ in range(count)]
    ahead = ReadAhead(DATA, SAMPLER, SPANS, None, readers)
    alone = BatchSource(DATA, SAMPLER, SPANS, None)
    orders = [("train", 5), ("train", 6), ("held_out", 0), ("train", 7), ("held_out", 1), ("train", 8)]
    orders += [("held_out", number) for number in range(2, len(SPANS))] + [("train", number) for number in range(9, 30)]
    orders += [("held_out", number) for number in range(len(SPANS))]
    for part, number in orders:
        assert getattr(ahead, part)(number)[1].tolist() == getattr(alone, part)(number)[1].tolist()
    assert max(reader.most for reader in readers) <= 8
    ahead.close()
    assert all(reader.asked is None for reader in readers)


def test_each_micro_batch_is_asked_for_ahead_and_once():
    readers = [Reader(), Reader()]
    ahead = ReadAhead(DATA, SAMPLER, SPANS, None, readers)
    for number in range(10):
        ahead.train(number)
    waiting = [request for reader in readers for request in reader.asked]
    assert sorted(indices for _, indices, _ in waiting) == sorted(SAMPLER.batch(number) for number in range(10, 14))
