"""Whole runs of models with several inputs, masks, frozen and 0-dim parameters, and of Hugging Face classes."""

import pytest
import torch
from torch.nn import functional

from ravnest.job.initial_weights import make_weights
from ravnest.job.materials import load_data, make_model
from ravnest.training.batches import arguments, fetch
from ravnest.training.sampler import Sampler
from tests.support.local import JOB_FILE, local_run, setups_of, tiny_job

BY_POSITION = {"model": {"factory": "several:masked"}, "data": {"factory": "several:counting"}}
BY_KEYWORD = {
    "model": {"factory": "several:masked"},
    "data": {"factory": "several:counting", "args": {"names": ["mask", "ids", "kind"]}},
}


def plain_losses(job, count):
    """Of ordinary training on the same micro-batches."""
    torch.set_num_threads(1)
    model = make_model(job, JOB_FILE)
    model.load_state_dict(make_weights(job, JOB_FILE), strict=False)
    data = load_data(job, JOB_FILE)
    sampler = Sampler(len(data.train), job.seed, (0.0, 1.0), job.micro_batch)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=job.optimizer.lr)
    losses = []
    for k in range(count):
        inputs, target = fetch(data.train, sampler.batch(k))
        args, kwargs = arguments(inputs)
        output = model(*args, **kwargs)
        output = output if isinstance(output, torch.Tensor) else output.logits
        loss = functional.cross_entropy(output.flatten(0, -2), target.flatten())
        losses.append(loss.item())
        (loss / job.update_every).backward()
        if (k + 1) % job.update_every == 0:
            optimizer.step()
            optimizer.zero_grad()
    return losses, model


def synchronous(**changes):
    return tiny_job(max_staleness=0, optimizer={"name": "sgd", "lr": 0.1}, average_every=100_000, **changes)


@pytest.mark.parametrize("changes", [BY_POSITION, BY_KEYWORD], ids=["position", "keyword"])
def test_several_inputs_train_as_in_a_plain_loop(changes):
    job = synchronous(**changes)
    run = local_run(job, parts=(3,))
    result = run.run()
    expected, model = plain_losses(job, len(result.losses["c0"]))
    assert result.losses["c0"] == pytest.approx(expected, abs=1e-6)
    anchor = result.checkpoints[-1]
    assert anchor.keys() == model.state_dict().keys()
    assert max((anchor[name] - tensor).abs().max() for name, tensor in model.state_dict().items()) < 1e-6


def test_masks_and_integers_cross_every_cut_without_gradients():
    setups, _ = setups_of(synchronous(**BY_KEYWORD), parts=(3,))
    crossing = [spec for name in ("c0.s1", "c0.s2") for spec in setups[name].program.inputs]
    still = [spec for spec in crossing if not spec.dtype.is_floating_point]
    assert {spec.dtype for spec in still} == {torch.bool, torch.int64}
    assert not any(spec.needs_gradient for spec in still)


def test_frozen_and_scalar_parameters_over_two_clusters():
    job = tiny_job(**BY_KEYWORD, optimizer={"name": "adamw", "lr": 0.01})
    run = local_run(job, parts=(2, 3))
    anchor = run.run().checkpoints[-1]
    start = make_weights(job, JOB_FILE)
    assert run.control.rounds_committed >= 3
    assert torch.equal(anchor["offset"], start["offset"])
    assert anchor["scale"].shape == anchor["temperature"].shape == ()
    assert not torch.equal(anchor["scale"], start["scale"])
    assert not torch.equal(anchor["temperature"], start["temperature"])
    averaged = {name for stage in run.stages.values() for s in stage.setup.segments for name in s.parameters}
    assert averaged == start.keys() - {"offset"}


def test_lstms_train_as_in_a_plain_loop():
    job = synchronous(model={"factory": "several:recurrent"}, data={"factory": "tiny:words"})
    result = local_run(job, parts=(2,)).run()
    expected, _ = plain_losses(job, len(result.losses["c0"]))
    assert result.losses["c0"] == pytest.approx(expected, abs=1e-6)


GPT2 = {"vocab_size": 11, "n_positions": 8, "n_embd": 12, "n_layer": 2, "n_head": 2, "resid_pdrop": 0.0}
GPT2 |= {"model_type": "gpt2", "embd_pdrop": 0.0, "attn_pdrop": 0.0, "tie_word_embeddings": False}
SMALL = {"vocab_size": 11, "hidden_size": 12, "intermediate_size": 24, "num_hidden_layers": 2}
SMALL |= {"num_attention_heads": 2, "max_position_embeddings": 8}
LLAMA = {"model_type": "llama", "tie_word_embeddings": False, **SMALL}
BERT = {"model_type": "bert", "architectures": ["BertForSequenceClassification"], "num_labels": 3, **SMALL}
BERT |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


@pytest.mark.parametrize(
    ("config", "classify"), [(GPT2, False), (LLAMA, False), (BERT, True)], ids=["gpt2", "llama", "bert"]
)
def test_hugging_face_models_train_with_an_attention_mask(config, classify):
    pytest.importorskip("transformers")
    data = {"factory": "several:sentences", "args": {"classify": classify}}
    job = synchronous(model={"huggingface": config}, data=data, stop={"samples": 120})
    result = local_run(job, parts=(3,)).run()
    expected, model = plain_losses(job, len(result.losses["c0"]))
    assert result.losses["c0"] == pytest.approx(expected, abs=1e-5)
    loaded = model.load_state_dict(result.checkpoints[-1], strict=True)
    assert not loaded.missing_keys


def test_a_run_with_keyword_inputs_is_evaluated_with_a_short_last_batch():
    job = tiny_job(**BY_KEYWORD, evaluate_every=60, metrics=["accuracy"])
    result = local_run(job, parts=(2,)).run()
    counted = int((load_data(job, JOB_FILE).held_out.dataset.target != -100).sum())
    assert len(result.evaluations) >= 3
    assert all(evaluated.metrics[0][1] == counted for evaluated in result.evaluations)
