"""Whole runs whose loss takes more than one tensor, or one of several, or has parameters of its own."""

import sys
from functools import partial

import pytest
import torch
from torch.nn import functional

from ravnest.errors import InvalidInput
from ravnest.job.initial_weights import make_weights
from ravnest.job.materials import capture_job, load_data, make_model
from ravnest.training.batches import fetch
from ravnest.training.sampler import Sampler
from tests.support.jobs import measured
from tests.support.local import JOB_FILE, local_run, setups_of, tiny_job


def job_of(form, loss, **changes):
    """Synchronous training of a model that returns a hidden tensor and logits in this form."""
    return tiny_job(
        loss=loss,
        **{
            "model": {"factory": "measured:tagger", "args": {"form": form}},
            "max_staleness": 0,
            "optimizer": {"name": "sgd", "lr": 0.1},
            "stop": {"samples": 96},
            "average_every": 100_000,
            **changes,
        },
    )


def plain_losses(job, count, loss, modules=()):
    """Of ordinary training on the same micro-batches; `modules`: what is trained beside the model."""
    torch.set_num_threads(1)
    model = make_model(job, JOB_FILE)
    model.load_state_dict(make_weights(job, JOB_FILE), strict=False)
    data = load_data(job, JOB_FILE)
    sampler = Sampler(len(data.train), job.seed, (0.0, 1.0), job.micro_batch)
    trained = [p for module in (model, *modules) for p in module.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=job.optimizer.lr)
    losses = []
    for k in range(count):
        (given,), target = fetch(data.train, sampler.batch(k))
        value = loss(model(given), target)
        losses.append(value.item())
        (value / job.update_every).backward()
        if (k + 1) % job.update_every == 0:
            optimizer.step()
            optimizer.zero_grad()
    return losses, model


def of_logits(output, target):
    output = output["logits"] if isinstance(output, dict) else output[1]
    return functional.cross_entropy(output.flatten(0, 1), target.flatten())


@pytest.mark.parametrize(
    ("form", "loss"), [("dict", "cross_entropy"), ("tuple", {"name": "cross_entropy", "output": "1"})]
)
def test_a_named_loss_trains_the_logits_and_not_what_stands_before_them(form, loss):
    job = job_of(form, loss)
    result = local_run(job, parts=(3,)).run()
    expected, model = plain_losses(job, len(result.losses["c0"]), of_logits)
    assert result.losses["c0"] == pytest.approx(expected, abs=1e-6)
    anchor, start = result.checkpoints[-1], make_weights(job, JOB_FILE)
    assert max((anchor[name] - tensor).abs().max() for name, tensor in model.state_dict().items()) < 1e-6
    assert not torch.equal(anchor["head.weight"], start["head.weight"])
    assert torch.equal(anchor["aside.weight"], start["aside.weight"])


def test_what_a_named_loss_does_not_read_crosses_no_cut():
    named, _ = setups_of(job_of("dict", "cross_entropy"), parts=(3,))
    own, _ = setups_of(job_of("dict", {"function": "measured:both"}), parts=(3,))
    assert [len(setups["c0.s2"].program.inputs) for setups in (named, own)] == [1, 2]


def test_an_output_that_is_not_clear_is_refused_with_what_was_found():
    job = job_of("tuple", "cross_entropy")
    with pytest.raises(InvalidInput, match=r"job\.yaml: loss: the model returns 0, 1; cross_entropy takes one tensor"):
        capture_job(job, JOB_FILE, load_data(job, JOB_FILE))


@pytest.mark.parametrize("form", ["dict", "tuple", "class"])
def test_a_loss_of_the_users_gets_all_that_the_model_returns(form):
    job = job_of(form, {"function": "measured:both", "args": {"share": 0.25}})
    result = local_run(job, parts=(3,)).run()
    expected, model = plain_losses(job, len(result.losses["c0"]), partial(sys.modules["measured"].both, share=0.25))
    assert result.losses["c0"] == pytest.approx(expected, abs=1e-6)
    anchor = result.checkpoints[-1]
    assert max((anchor[name] - tensor).abs().max() for name, tensor in model.state_dict().items()) < 1e-6
    assert result.evaluations[-1].loss[1] == 10


def test_a_hugging_face_output_reaches_the_loss_as_its_class():
    pytest.importorskip("transformers")
    job = job_of("dict", {"function": "measured:of_model_output"}, model={"factory": "measured:language_model"})
    result = local_run(job, parts=(2,)).run()
    expected, _ = plain_losses(job, len(result.losses["c0"]), measured.of_model_output)
    assert result.losses["c0"] == pytest.approx(expected, abs=1e-5)


ARCFACE = {
    "model": {"factory": "measured:embedder"},
    "data": {"factory": "tiny:images"},
    "loss": {"factory": "measured:ArcFace"},
}


def of_loss(tensors):
    """What belongs to the loss, by its own names."""
    return {name.removeprefix("loss."): tensor for name, tensor in tensors.items() if name.startswith("loss.")}


@pytest.mark.parametrize("split", ["never", "always"])
@pytest.mark.parametrize("recompute", ["never", "always"])
def test_a_loss_with_parameters_trains_as_in_a_plain_loop(split, recompute):
    job = tiny_job(
        **ARCFACE,
        max_staleness=0,
        optimizer={"name": "sgd", "lr": 0.1},
        stop={"samples": 96},
        average_every=100_000,
        split_backward=split,
        activation_checkpointing=recompute,
    )
    result = local_run(job, parts=(3,)).run()
    module = measured.ArcFace()
    module.load_state_dict(of_loss(make_weights(job, JOB_FILE)))
    start = module.directions.detach().clone()
    expected, model = plain_losses(job, len(result.losses["c0"]), module, [module])
    assert result.losses["c0"] == pytest.approx(expected, abs=1e-6)
    anchor = result.checkpoints[-1]
    assert anchor.keys() == {*model.state_dict(), "loss.directions", "loss.norm"}
    for name, tensor in module.state_dict().items():
        assert torch.allclose(of_loss(anchor)[name], tensor, atol=1e-6)
    assert not torch.allclose(module.directions, start, atol=1e-3)


def test_a_loss_s_parameters_are_averaged_and_are_in_the_plan():
    job = tiny_job(**ARCFACE, average_every=48)
    run = local_run(job, parts=(2, 3))
    result = run.run()
    last = [run.stages["c0.s1"], run.stages["c1.s2"]]
    held = [dict(stage.compute.module.named_parameters())["loss.directions"] for stage in last]
    assert torch.equal(*held)
    assert torch.equal(result.checkpoints[-1]["loss.directions"], held[0])
    assert {name for name, _ in last[0].compute.weights.optimizer_state()} >= {"loss.directions"}
    ours = capture_job(job, JOB_FILE, load_data(job, JOB_FILE))
    plain = tiny_job(**{**ARCFACE, "loss": "cross_entropy"})
    theirs = capture_job(plain, JOB_FILE, load_data(plain, JOB_FILE))
    more = [a.parameter_bytes - b.parameter_bytes for a, b in zip(ours.units, theirs.units, strict=True)]
    assert more == [0] * (len(more) - 1) + [4 * 5 * 16]
    assert ours.costs.fingerprint != theirs.costs.fingerprint


def test_frozen_parameters_stay_as_they_are():
    job = tiny_job(**ARCFACE, frozen=["1.*", "loss.directions"], stop={"samples": 48})
    anchor, start = local_run(job, parts=(2,)).run().checkpoints[-1], make_weights(job, JOB_FILE)
    still = {name for name in start if torch.equal(anchor[name], start[name])}
    assert still == {"1.weight", "1.bias", "loss.directions"}
    with pytest.raises(InvalidInput, match=r"frozen: 'nowhere\.\*' matches no parameter of the model"):
        make_model(tiny_job(frozen=["nowhere.*"]), JOB_FILE)


def test_a_model_with_weights_under_the_prefix_of_the_loss_is_refused():
    job = tiny_job(**{**ARCFACE, "model": {"factory": "measured:with_a_loss"}})
    with pytest.raises(InvalidInput, match=r"loss: the model has 'loss\.weight', and what begins with 'loss\.' are"):
        capture_job(job, JOB_FILE, load_data(job, JOB_FILE))
