import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from ravnest.errors import InvalidInput
from ravnest.training.batches import (
    BatchSource,
    SampleKeys,
    SampleSet,
    arguments,
    fetch,
    sample_batch,
    target_tensors,
    with_tensors,
)
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


def test_a_sample_of_a_subset_is_drawn_the_same_whatever_batch_it_is_read_in():
    class Drawn(torch.utils.data.Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, index):
            return torch.rand(2), index

    part = SampleSet(torch.utils.data.Subset(torch.utils.data.Subset(Drawn(), range(7)), [6, 2, 4]))
    (inputs,), target = part.batch([0, 1, 2])
    (alone,), _ = part.batch([2])
    assert (target.tolist(), torch.equal(inputs[2:], alone)) == ([6, 2, 4], True)


@pytest.mark.parametrize("sample", [("text", 1), (torch.ones(2), "label"), ((torch.ones(2), "text"), 1)])
def test_what_is_no_tensor_is_refused_at_the_job_s_key(sample):
    with pytest.raises(InvalidInput, match=r"^data\.factory: .*the text .*each sample must be \(inputs, target\)"):
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
    data, sampler = (
        SimpleNamespace(train=SampleSet(held), held_out=SampleSet(held, "held_out")),
        Sampler(10, 7, (0.0, 1.0), 2),
    )
    (n, x), target = BatchSource(data, sampler, [range(2)], ("n", "x")).held_out(0)
    assert (n.tolist(), x.tolist(), target.tolist()) == ([0, 1], [[0.0, 1.0], [2.0, 3.0]], [0, 1])
    assert BatchSource(data, sampler, [range(2)]).train(0)[0] == ()
    with pytest.raises(
        InvalidInput, match=r"^data\.factory: a sample has the inputs x, n; the model was captured with x"
    ):
        BatchSource(data, sampler, [range(2)], ("x",)).train(0)


@pytest.mark.parametrize("sample", [3, None, (1, 2, 3), torch.ones(2)])
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
    data = SimpleNamespace(train=SampleSet(TensorDataset(X, Y)), held_out=SampleSet(TensorDataset(-X, Y), "held_out"))
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


class Drawing:
    """Draws from each of the three global generators."""

    def __len__(self):
        return 10

    def __getitem__(self, index):
        return torch.tensor([torch.rand(()), np.random.rand(), random.random()], dtype=torch.float64), index


def test_draws_depend_on_seed_set_epoch_and_index_alone():
    drawing = SampleSet(Drawing(), seed=4)
    (first,), _ = drawing.batch([3, 5], epoch=1)
    torch.rand(3)
    (again,), _ = drawing.batch([5, 3], epoch=1)
    assert torch.equal(first, again.flip(0))
    others = [
        drawing.batch([3], epoch=2),
        SampleSet(Drawing(), seed=5).batch([3], epoch=1),
        SampleSet(Drawing(), "held_out", seed=4).batch([3], epoch=1),
    ]
    assert all((first[0] != inputs[0]).all() for (inputs,), _ in others)


def test_whoever_reads_goes_on_with_the_generators_as_they_were():
    states = torch.get_rng_state(), np.random.get_state(legacy=False), random.getstate()
    SampleSet(Drawing()).batch([1, 2])
    with pytest.raises(InvalidInput):
        SampleSet(Drawing(), collate_fn=lambda samples: 1 / 0).batch([1])
    assert torch.equal(states[0], torch.get_rng_state())
    assert (np.random.get_state(legacy=False)["state"]["key"] == states[1]["state"]["key"]).all()
    assert random.getstate() == states[2]


def test_a_collate_function_draws_by_its_first_index_and_pads_ragged_samples():
    def padded(samples):
        inputs = torch.nn.utils.rnn.pad_sequence([sample for sample, _ in samples], batch_first=True)
        return inputs + torch.rand(()), torch.tensor([target for _, target in samples])

    ragged = SampleSet([(torch.ones(n), n) for n in (1, 3, 2)], collate_fn=padded)
    (inputs,), target = ragged.batch([0, 1])
    assert (inputs.shape, target.tolist()) == ((2, 3), [1, 3])
    assert torch.equal(inputs, ragged.batch([0, 1])[0][0])
    assert not torch.equal(inputs, ragged.batch([0, 1], epoch=1)[0][0])


@pytest.mark.parametrize("batch", [3, None, (1, 2, 3), [torch.ones(2)], (torch.ones(2), "text")])
def test_a_collate_function_that_returns_no_batch_is_refused(batch):
    with pytest.raises(InvalidInput, match=r"expected \(inputs, target\), or a dict|must be \(inputs, target\)"):
        SampleSet([(X[0], 1)], collate_fn=lambda samples: batch).batch([0])


ROWS = [{"input_ids": [i, i + 1], "attention_mask": [1, 0], "labels": i, "note": "text"} for i in range(3)]


def test_rows_of_lists_become_inputs_by_keyword_and_labels():
    chosen = SampleKeys(inputs=("input_ids", "attention_mask"))
    inputs, target = SampleSet(ROWS, keys=chosen).batch([1, 2])
    assert {name: tensor.tolist() for name, tensor in inputs.items()} == {
        "input_ids": [[1, 2], [2, 3]],
        "attention_mask": [[1, 0], [1, 0]],
    }
    assert target.tolist() == [1, 2]


def test_a_column_that_is_no_tensor_is_named_with_the_key_that_leaves_it_out():
    with pytest.raises(
        InvalidInput, match=r"^data\.factory: the input 'note' is the text 'text' and no tensor; "
    ) as caught:
        SampleSet(ROWS).batch([0, 1])
    assert "data.inputs" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("sample", "said"),
    [
        (("a sentence", 1), "the input is the text 'a sentence' and no tensor; each sample must be"),
        ((X[0], "cat"), "the target is the text 'cat' and no tensor; each sample must be"),
        ("a sentence", "sample 0 is str; each sample must be"),
    ],
)
def test_texts_are_refused_by_what_they_are(sample, said):
    with pytest.raises(InvalidInput, match=rf"^data\.factory: {said}") as caught:
        SampleSet([sample, sample]).batch([0, 1])
    assert caught.value.hint is None


@pytest.mark.parametrize("key", ["labels", "label", "target"])
def test_the_target_of_a_dict_is_found_by_its_usual_names(key):
    inputs, target = fetch([{"x": X[0], key: 3}], [0])
    assert (list(inputs), target.tolist()) == (["x"], [3])


def test_several_targets_stay_a_dict_and_a_tuple_a_tuple():
    row = {"x": X[0], "box": [0.5, 1.0], "kind": 2}
    inputs, target = SampleSet([row], keys=SampleKeys(targets=("box", "kind"))).batch([0])
    assert (list(inputs), {key: value.tolist() for key, value in target.items()}) == (
        ["x"],
        {"box": [[0.5, 1.0]], "kind": [2]},
    )
    _, nested = fetch([(X[0], {"a": 1, "b": X[1]}), (X[0], {"a": 2, "b": X[2]})], [0, 1])
    assert (nested["a"].tolist(), nested["b"].shape) == ([1, 2], (2, 2))
    _, several = fetch([(X[0], (1, 2.5))], [0])
    assert isinstance(several, tuple)
    assert [each.tolist() for each in several] == [[1], [2.5]]
    for each in (target, nested, several, X):
        doubled = with_tensors(each, [tensor * 2 for tensor in target_tensors(each)])
        assert type(doubled) is type(each)
        assert [t.tolist() for t in target_tensors(doubled)] == [(t * 2).tolist() for t in target_tensors(each)]


def test_keys_that_are_not_there_are_refused_by_name():
    with pytest.raises(
        InvalidInput, match=r"data\.targets: sample 0 has the keys x, and none of labels, label, target"
    ):
        fetch([{"x": 1}], [0])
    with pytest.raises(InvalidInput, match=r"data\.inputs: sample 0 has the keys input_ids, .*, and not pixels"):
        SampleSet(ROWS, keys=SampleKeys(inputs=("pixels",))).batch([0])
    with pytest.raises(InvalidInput, match=r"data\.factory: sample 0 has the targets a, sample 1 the targets b"):
        fetch([(1, {"a": 1}), (1, {"b": 1})], [0, 1])
