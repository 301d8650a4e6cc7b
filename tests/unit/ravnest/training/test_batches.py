from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import TensorDataset

from ravnest.errors import InvalidInput
from ravnest.training.batches import BatchSource, arguments, fetch, sample_batch
from ravnest.training.sampler import Sampler

X, Y = torch.arange(20.0).view(10, 2), torch.arange(10)


def test_samples_are_collated_in_the_order_asked_for():
    (inputs,), target = fetch(TensorDataset(X, Y), [3, 1])
    assert inputs.tolist() == [[6.0, 7.0], [2.0, 3.0]]
    assert target.tolist() == [3, 1]


def test_several_inputs_and_plain_numbers_do():
    dataset = [((X[i], i), 0.5) for i in range(4)]
    (first, second), target = fetch(dataset, [0, 2])
    assert first.tolist() == [[0.0, 1.0], [4.0, 5.0]]
    assert second.tolist() == [0, 2]
    assert target.tolist() == [0.5, 0.5]


def test_a_dataset_that_fetches_many_at_once_is_asked_once():
    asked = []

    class Many:
        def __getitems__(self, indices):
            asked.append(indices)
            return [(X[i], Y[i]) for i in indices]

    _, target = fetch(Many(), range(2, 4))
    assert target.tolist() == [2, 3]
    assert asked == [[2, 3]]


@pytest.mark.parametrize("sample", [("text", 1), (torch.ones(2), "label"), ((torch.ones(2), "text"), 1)])
def test_what_is_no_tensor_is_refused_at_the_job_s_key(sample):
    with pytest.raises(InvalidInput, match=r"^data\.factory: each sample must be \(inputs, target\)"):
        fetch([sample], [0])


def test_inputs_by_keyword_stay_a_dict():
    inputs, target = fetch([({"x": X[i], "n": i}, 0.5) for i in range(4)], [0, 2])
    assert isinstance(inputs, dict)
    assert {name: tensor.tolist() for name, tensor in inputs.items()} == {"x": [[0.0, 1.0], [4.0, 5.0]], "n": [0, 2]}
    assert target.tolist() == [0.5, 0.5]
    assert arguments(inputs) == ((), inputs)
    assert arguments((X,)) == ((X,), {})


@pytest.mark.parametrize("other", [{"x": 1}, {"x": 1, "n": 2, "more": 3}, (1, 2)])
def test_samples_with_other_keys_than_the_first_are_refused(other):
    with pytest.raises(InvalidInput, match=r"^data\.factory: sample 0 has the inputs n, x, sample 1 "):
        fetch([({"x": 1, "n": 2}, 1), (other, 1)], [0, 1])


def test_a_first_stage_gets_keyword_inputs_in_its_own_order_and_no_other_stage_any():
    held = [({"x": X[i], "n": i}, Y[i]) for i in range(10)]
    data, sampler = SimpleNamespace(train=held, held_out=held), Sampler(10, 7, (0.0, 1.0), 2)
    (n, x), target = BatchSource(data, sampler, [range(2)], ("n", "x")).held_out(0)
    assert (n.tolist(), x.tolist(), target.tolist()) == ([0, 1], [[0.0, 1.0], [2.0, 3.0]], [0, 1])
    assert BatchSource(data, sampler, [range(2)]).train(0)[0] == ()
    with pytest.raises(
        InvalidInput, match=r"^data\.factory: a sample has the inputs x, n; the model was captured with x"
    ):
        BatchSource(data, sampler, [range(2)], ("x",)).train(0)


@pytest.mark.parametrize("sample", [3, None, (1, 2, 3), {"x": 1}, torch.ones(2)])
def test_what_is_no_pair_is_refused_with_its_number(sample):
    with pytest.raises(InvalidInput, match=r"^data\.factory: sample 1 is .*; each sample must be"):
        fetch([(torch.ones(2), 1), sample], [0, 1])


def test_samples_that_do_not_join_are_refused():
    with pytest.raises(
        InvalidInput, match=r"^data\.factory: samples cannot be joined into a batch: RuntimeError: stack"
    ):
        fetch([(torch.ones(n), 1) for n in (1, 2)], [0, 1])


def test_a_dataset_that_raises_is_the_user_s_fault_with_its_line():
    class Broken:
        def __getitem__(self, index):
            raise KeyError(index)

    with pytest.raises(InvalidInput, match=rf"reading samples 0, 1 raised KeyError: 0 \({__file__}:\d+;") as caught:
        fetch(Broken(), [0, 1])
    assert caught.value.key == "data.factory"


def test_a_source_reads_micro_batches_by_number_and_held_out_spans():
    data = SimpleNamespace(train=TensorDataset(X, Y), held_out=TensorDataset(-X, Y))
    sampler = Sampler(10, 7, (0.0, 0.5), 2)
    source = BatchSource(data, sampler, [range(3), range(3, 4)])
    assert source.train(3)[1].tolist() == sampler.batch(3)
    (inputs,), target = source.held_out(1)
    assert inputs.tolist() == [[-6.0, -7.0]]
    assert target.tolist() == [3]


def test_the_sample_batch_is_the_beginning_of_the_training_set():
    data = SimpleNamespace(train=TensorDataset(X, Y))
    assert sample_batch(data, 10)[1].tolist() == list(range(10))
    with pytest.raises(InvalidInput, match="micro_batch: is 11, but the training set has only 10 samples"):
        sample_batch(data, 11)


def test_rows_of_a_tensor_dataset_are_what_sample_by_sample_would_give():
    held = TensorDataset(torch.arange(12.0).reshape(6, 2), torch.arange(6))
    several = [held[index] for index in range(6)]
    for indices in ([4], [5, 0, 5], range(1, 4)):
        (quick,), quick_target = fetch(held, indices)
        (plain,), plain_target = fetch(several, indices)
        assert torch.equal(quick, plain)
        assert torch.equal(quick_target, plain_target)
