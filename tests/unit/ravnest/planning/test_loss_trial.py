"""A job's loss and metrics are tried on the first micro-batch, and what cannot work is refused before training."""

import sys

import pytest
import torch

from ravnest.errors import InvalidInput
from ravnest.job.materials import capture_job, first_batch, load_data, make_model
from ravnest.planning.loss_trial import check_gradients, check_measures, check_target
from ravnest.splitting.model_source import weights_of
from tests.support.local import JOB_FILE, tiny_job

LOSSES = """
def raising():
    return lambda output, target: output.nope
def vector():
    return lambda output, target: output.sum(1)
def detached():
    return lambda output, target: output.detach().sum()
def summed():
    import torch
    return torch.nn.CrossEntropyLoss(reduction="sum")
def mean_with_penalty():
    import torch
    return lambda output, target: torch.nn.functional.cross_entropy(output, target) + output.square().mean()
def number(): return 3
def broken(): return 1 / 0
"""


@pytest.mark.parametrize("key", ["loss", "metrics"])
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("raising", "raised AttributeError: 'Tensor' object has no attribute 'nope'"),
        ("vector", "expected one number in a tensor"),
        ("number", "returned int, expected a callable"),
        ("broken", "raised ZeroDivisionError"),
        ("absent", "has no 'absent'"),
    ],
)
def test_a_loss_or_metric_that_cannot_work_is_refused(tmp_path, monkeypatch, key, name, said):
    with pytest.raises(InvalidInput) as caught:
        measured(tmp_path, monkeypatch, key, name)
    assert str(caught.value).startswith(f"{tmp_path / 'job.yaml'}: {key}: ")
    assert said in str(caught.value)


def test_a_loss_without_a_gradient_is_refused(tmp_path, monkeypatch):
    with pytest.raises(InvalidInput, match="it has no gradient"):
        measured(tmp_path, monkeypatch, "loss", "detached")
    measured(tmp_path, monkeypatch, "metrics", "detached")


def test_a_loss_that_is_a_sum_over_the_samples_is_refused_and_a_mean_is_not(tmp_path, monkeypatch):
    with pytest.raises(InvalidInput, match=r"job\.yaml: loss: .*summed' gives a sum: ") as caught:
        measured(tmp_path, monkeypatch, "loss", "summed")
    assert "mean over the samples" in str(caught.value.hint)
    measured(tmp_path, monkeypatch, "loss", "mean_with_penalty")
    measured(tmp_path, monkeypatch, "metrics", "summed")


def measured(folder, monkeypatch, key, name):
    monkeypatch.delitem(sys.modules, "losses_for_rehearsal", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (folder / "losses_for_rehearsal.py").write_text(LOSSES)
    factory = {"factory": f"losses_for_rehearsal:{name}"}
    job = tiny_job(**{key: factory if key == "loss" else [factory]})
    output = torch.randn(4, 3, requires_grad=True)
    check_measures(job, folder / "job.yaml", output, torch.zeros(4, dtype=torch.int64))


def test_what_a_model_returns_reaches_the_loss_whole():
    output = {"hidden": torch.randn(4, 8, 11, requires_grad=True), "logits": torch.randn(4, 8, 11, requires_grad=True)}
    target = torch.zeros(4, 8, dtype=torch.int64)
    check_measures(tiny_job(loss={"function": "measured:both"}), JOB_FILE, output, target)
    check_measures(tiny_job(metrics=["accuracy"]), JOB_FILE, output, target)
    with pytest.raises(InvalidInput, match=r"loss\.output: the model returns hidden, logits; there is no 'scores'"):
        check_measures(tiny_job(loss={"name": "cross_entropy", "output": "scores"}), JOB_FILE, output, target)
    said = r"'measured:of_model_output', on an output of hidden \(4, 8, 11\), logits .* raised AttributeError"
    with pytest.raises(InvalidInput, match=said):
        check_measures(tiny_job(loss={"function": "measured:of_model_output"}), JOB_FILE, output, target)


IMAGES = {"model": {"factory": "measured:embedder"}, "data": {"factory": "tiny:images"}}


def tried(**changes):
    """What check_gradients says of a job."""
    job = tiny_job(**changes)
    data = load_data(job, JOB_FILE)
    inputs, target = first_batch(job, JOB_FILE, data)
    weights = weights_of(make_model(job, JOB_FILE))
    return check_gradients(job, JOB_FILE, capture_job(job, JOB_FILE, data), weights, inputs, target)


def test_parameters_that_the_loss_does_not_reach_are_named():
    tagger = {"model": {"factory": "measured:tagger"}, "data": {"factory": "tiny:words"}}
    assert tried(**tagger) == ("aside.weight", "aside.bias")
    assert tried(**tagger, loss={"function": "measured:both"}) == ()
    own = {**tagger, "loss": {"function": "measured:of_logits"}}
    with pytest.raises(InvalidInput, match=r"job\.yaml: loss: no gradient of 'measured:of_logits' reaches aside\.w"):
        tried(**own)
    assert tried(**own, frozen=["aside.*"]) == ("aside.weight", "aside.bias")
    with pytest.raises(InvalidInput, match="'cross_entropy' depends on no parameter that is trained"):
        tried(**tagger, frozen=["*"])


def test_a_loss_whose_parameters_cannot_be_trained_is_refused():
    assert tried(**IMAGES, loss={"factory": "measured:ArcFace"}) == ()
    with pytest.raises(InvalidInput, match=r"'measured:Hidden' uses a parameter of shape \(5,"):
        tried(**IMAGES, loss={"factory": "measured:Hidden"})
    with pytest.raises(InvalidInput, match=r"'measured:Centred' changes its buffer 'centre'"):
        tried(**IMAGES, loss={"factory": "measured:Centred"})


WORDS = torch.tensor([[1, 2, 3], [4, 5, 6]])
PADDED = torch.tensor([[1, 2, -100], [4, 5, 6]])
LLAMA = {"huggingface": {"model_type": "llama"}}


@pytest.mark.parametrize("inputs", [(WORDS,), {"input_ids": WORDS, "attention_mask": WORDS > 0}])
def test_labels_that_a_hugging_face_model_would_shift_are_refused(inputs):
    for target in (WORDS, PADDED, {"labels": WORDS}):
        with pytest.raises(InvalidInput, match=r"^job\.yaml: data\.factory: .* labels are not shifted here") as caught:
            check_target(tiny_job(model=LLAMA), "job.yaml", inputs, target)
        assert "labels[1:]" in str(caught.value.hint)


def test_a_target_that_is_the_input_is_warned_of_for_other_models_and_others_pass():
    masked = {"huggingface": {"model_type": "bert", "architectures": ["BertForMaskedLM"]}}
    for model in ({}, {"model": masked}):
        assert "is the model to repeat it?" in (check_target(tiny_job(**model), "job.yaml", (WORDS,), WORDS) or "")
    others = [(WORDS,)] * 4
    targets = (WORDS.roll(1, 1), torch.full_like(WORDS, -100), WORDS[:, 0], WORDS.float())
    for inputs, target in zip([*others, (WORDS, WORDS + 1)], [*targets, WORDS + 1], strict=True):
        assert check_target(tiny_job(model=LLAMA), "job.yaml", inputs, target) is None
