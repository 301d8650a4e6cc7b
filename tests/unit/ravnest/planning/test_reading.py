"""What planning tries of the data in its own process; tests/integration/test_readers.py has the two others."""

import pytest
import torch

from ravnest.errors import InvalidInput
from ravnest.job.materials import JobData
from ravnest.planning.reading import check_forms, check_reading, compared
from ravnest.training.batches import SampleSet
from tests.support.local import JOB_FILE, tiny_job


def data_of(samples, collate_fn=None) -> JobData:
    each = SampleSet(samples, collate_fn=collate_fn)
    return JobData(each, each, None)


def test_data_in_memory_take_no_time_and_no_process():
    tensors = data_of(torch.utils.data.TensorDataset(torch.ones(8, 2), torch.ones(8)))
    check_reading(tiny_job(), JOB_FILE, tensors)
    assert check_forms(tiny_job(), JOB_FILE, tensors) == 0.0


def test_the_time_of_a_micro_batch_is_measured(monkeypatch):
    clock = iter(x / 8 for x in range(1000))
    monkeypatch.setattr("ravnest.planning.reading.time.monotonic", lambda: next(clock))
    assert check_forms(tiny_job(), JOB_FILE, data_of([(torch.ones(2), 1)] * 40)) == 0.12


def test_micro_batches_of_several_lengths_are_refused():
    def padded(samples):
        inputs = torch.nn.utils.rnn.pad_sequence([sample for sample, _ in samples], batch_first=True)
        return inputs, torch.tensor([target for _, target in samples])

    ragged = data_of([(torch.ones(1 + index // 10), 1) for index in range(40)], padded)
    with pytest.raises(
        InvalidInput, match=r"samples 0 to 3 has the shapes \(4, 1\), \(4,\), and that of 9 to 12"
    ) as caught:
        check_forms(tiny_job(), JOB_FILE, ragged)
    assert caught.value.key == "data.collate_fn"


def test_quick_samples_are_compared_by_the_hundred_and_slow_ones_in_about_a_second():
    assert len(compared(100_000, 1e-4)) == len(compared(100_000, 0.0)) == 256
    assert compared(40, 1e-4) == list(range(40))
    assert len(compared(100_000, 0.02)) == 50
    assert len(compared(100_000, 5.0)) == 16
