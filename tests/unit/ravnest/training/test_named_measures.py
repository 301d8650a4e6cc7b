"""Cross entropy as torch defines it, and which tensors of an output and of a target a named measure takes."""

import pytest
import torch
from pydantic import ValidationError
from torch.nn import functional

from ravnest.errors import InvalidInput
from ravnest.training.named_measures import Measure, MeasureConfig, mean_of, measure_of


def randn(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def classes(*shape, below):
    return torch.randint(below, shape, generator=torch.Generator().manual_seed(0))


def entropy(**choices):
    return MeasureConfig(name="cross_entropy", **choices)


CHOICES = [
    {},
    {"label_smoothing": 0.1},
    {"ignore_index": 2},
    {"weight": [1.0, 0.5, 2.0, 0.0, 3.0]},
    {"weight": [1.0, 0.5, 2.0, 0.1, 3.0], "label_smoothing": 0.2, "ignore_index": 1},
]


@pytest.mark.parametrize("choices", CHOICES, ids=str)
@pytest.mark.parametrize("shape", [(8,), (8, 3), (8, 4, 3)], ids=str)
def test_cross_entropy_is_torchs_with_the_classes_in_the_second_dimension(shape, choices):
    output, target = randn(8, 5, *shape[1:]), classes(*shape, below=5)
    arguments = {**choices, **({"weight": torch.tensor(choices["weight"])} if "weight" in choices else {})}
    expected = functional.cross_entropy(output, target, **arguments)
    assert torch.equal(mean_of(entropy(**choices))(output, target), expected)
    measure = measure_of(entropy(**choices), "loss")
    parts = [measure(output[at], target[at]) for at in (slice(0, 3), slice(3, 8))]
    assert sum(parts, Measure(0.0, 0)).mean == pytest.approx(float(expected))


@pytest.mark.parametrize("choices", CHOICES[:3], ids=str)
def test_sequences_have_their_classes_last(choices):
    output, target = randn(2, 3, 5), classes(2, 3, below=5)
    expected = functional.cross_entropy(output.transpose(1, 2), target, **choices)
    for said in ({}, {"classes": "last"}):
        assert float(mean_of(entropy(**choices, **said))(output, target)) == pytest.approx(float(expected))


def test_what_shapes_leave_open_has_to_be_chosen():
    output, target = randn(2, 5, 5), classes(2, 5, below=5)
    with pytest.raises(InvalidInput, match=r"^loss: .*say \{name: cross_entropy, classes: last\} or classes: second"):
        mean_of(entropy())(output, target)
    rows = functional.cross_entropy(output.flatten(0, 1), target.flatten())
    assert torch.equal(mean_of(entropy(classes="last"))(output, target), rows)
    assert torch.equal(mean_of(entropy(classes="second"))(output, target), functional.cross_entropy(output, target))
    for name in ("accuracy", "perplexity"):
        with pytest.raises(InvalidInput, match=rf"^metrics: .*\{{name: {name}, classes: last\}}"):
            measure_of(MeasureConfig(name=name), "metrics")(output, target)
    second = measure_of(MeasureConfig(name="accuracy", classes="second"), "metrics")(output, target)
    assert second.mean == pytest.approx(float((output.argmax(1) == target).float().mean()))


def test_what_was_chosen_has_to_fit():
    with pytest.raises(InvalidInput, match="without its second dimension"):
        mean_of(entropy(classes="second"))(randn(2, 3, 5), classes(2, 3, below=5))
    with pytest.raises(InvalidInput, match="without its last dimension"):
        mean_of(entropy(classes="last"))(randn(2, 5, 3), classes(2, 3, below=5))
    with pytest.raises(InvalidInput, match=r"^loss\.weight: has 2 weights, and the output 5 classes"):
        mean_of(entropy(weight=[1.0, 2.0]))(randn(2, 5), classes(2, below=5))


def test_targets_may_be_probabilities():
    output, target = randn(4, 5), randn(4, 5).softmax(-1)
    expected = functional.cross_entropy(output, target, label_smoothing=0.1)
    assert torch.equal(mean_of(entropy(label_smoothing=0.1))(output, target), expected)
    assert measure_of(entropy(label_smoothing=0.1), "loss")(output, target).mean == pytest.approx(float(expected))
    weight = torch.tensor([1.0, 2.0, 0.5, 1.0, 1.0])
    weighted = functional.cross_entropy(output, target, weight=weight)
    assert measure_of(entropy(weight=weight.tolist()), "loss")(output, target).mean == pytest.approx(float(weighted))
    maps, soft = randn(4, 5, 3), randn(4, 5, 3).softmax(1)
    with pytest.raises(InvalidInput, match="is not clear"):
        mean_of(entropy())(maps, soft)
    found = measure_of(entropy(classes="second"), "loss")(maps, soft)
    assert found.mean == pytest.approx(float(functional.cross_entropy(maps, soft)))
    with pytest.raises(InvalidInput, match="accuracy needs numbers of classes"):
        measure_of(MeasureConfig(name="accuracy"), "metrics")(output, target)


def test_a_named_loss_takes_logits_or_refuses_with_what_it_found():
    output, target = randn(4, 5), classes(4, below=5)
    expected = functional.cross_entropy(output, target)
    hidden = randn(4, 7)
    loss = mean_of(entropy())
    assert torch.equal(loss({"hidden": hidden, "logits": output}, target), expected)
    assert torch.equal(loss((output,), target), expected)
    with pytest.raises(
        InvalidInput, match=r"^loss: the model returns 0, 1; cross_entropy takes one tensor: call it 'log"
    ):
        loss((hidden, output), target)
    with pytest.raises(InvalidInput, match=r"^loss: the model returns scores, hidden; "):
        loss({"scores": output, "hidden": hidden}, target)
    assert torch.equal(mean_of(entropy(output="1"))((hidden, output), target), expected)
    assert torch.equal(mean_of(entropy(output="a.0"))({"a": [output], "b": hidden}, target), expected)
    with pytest.raises(InvalidInput, match=r"^loss\.output: the model returns 0, 1; there is no '2'"):
        mean_of(entropy(output="2"))((hidden, output), target)


def test_a_named_loss_takes_labels_or_refuses_with_what_it_found():
    output, target = randn(4, 5), classes(4, below=5)
    expected = functional.cross_entropy(output, target)
    assert torch.equal(mean_of(entropy())(output, {"labels": target, "mask": target}), expected)
    assert torch.equal(mean_of(entropy(target="1"))(output, (target + 1, target)), expected)
    with pytest.raises(InvalidInput, match=r"^loss: the target has mask, words; cross_entropy takes one tensor"):
        mean_of(entropy())(output, {"mask": target, "words": target})
    with pytest.raises(InvalidInput, match=r"^loss\.target: the target has one tensor without a name; there is no 'x'"):
        mean_of(entropy(target="x"))(output, target)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"name": "mse", "label_smoothing": 0.1}, "mse has no 'label_smoothing'; it takes output, target"),
        ({"name": "accuracy", "weight": [1.0]}, "accuracy has no 'weight'"),
        ({"name": "cross_entropy", "classes": "first"}, "'last' or 'second'"),
        ({"name": "cross_entropy", "label_smoothing": 2}, "less than or equal to 1"),
        ({"name": "cross_entropy", "weight": [-1.0]}, "greater than or equal to 0"),
        ({"name": "cross_entropy", "smoothing": 0.1}, "Extra inputs"),
    ],
)
def test_choices_that_a_measure_does_not_have(given, said):
    with pytest.raises(ValidationError, match=said):
        MeasureConfig.model_validate(given)
