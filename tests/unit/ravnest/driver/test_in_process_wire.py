"""Whole runs whose activations and gradients travel in short forms."""

from dataclasses import replace

import pytest
import torch

from ravnest.driver.in_process import LocalRun
from ravnest.driver.preparation import StageState
from ravnest.driver.session import run_control
from ravnest.errors import RunFailed
from ravnest.job.initial_weights import make_weights
from ravnest.stage import messages as m
from tests.support.local import JOB_FILE, local_run, setups_of, tiny_job

FORMS = ["float32", "bfloat16", "float16", "int8", "int4"]


def trained(activations, gradients, **changes):
    wire = {"activations": activations, "gradients": gradients}
    job = tiny_job(wire=wire, stop={"samples": 480}, optimizer={"name": "adamw", "lr": 0.01}, **changes)
    run = local_run(job, parts=(3,))
    result = run.run()
    (evaluated,) = result.evaluations
    return result.losses["c0"], evaluated.loss[0] / evaluated.loss[1]


def test_float32_is_the_run_without_the_option_and_the_others_learn_as_well():
    losses, exact = trained("float32", "float32")
    assert losses == local_run(tiny_job(stop={"samples": 480}), parts=(3,)).run().losses["c0"]
    for form in FORMS[1:]:
        short, held_out = trained(form, form)
        assert short != losses
        assert short[0] == pytest.approx(losses[0], rel=0.05)
        assert held_out == pytest.approx(exact, rel=0.1), form


@pytest.mark.parametrize("form", FORMS[1:])
def test_the_bytes_between_stages_are_those_of_the_plan(form):
    job = tiny_job(wire={"activations": form, "gradients": "float16"})
    run = local_run(job, parts=(2,))
    setups, plan = setups_of(job, parts=(2,))
    sent = {}
    for name, stage in run.stages.items():
        plain = stage.endpoint.send

        def send(peer, lane, message, tensors=(), *, plain=plain, name=name):
            if isinstance(message, m.Activation | m.Gradient):
                sent.setdefault(name, set()).add(sum(tensor.nbytes for tensor in tensors))
            plain(peer, lane, message, tensors)

        stage.endpoint.send = send
    run.run()
    cut = plan.costs.units[setups["c0.s1"].program.start - 1]
    scale_bytes = 4
    (forward,), (back,) = sent["c0.s0"], sent["c0.s1"]
    assert forward == pytest.approx(plan.workload.activation_bytes(cut), abs=scale_bytes)
    assert back == pytest.approx(plan.workload.gradient_bytes(cut), abs=scale_bytes)


@pytest.mark.parametrize(
    ("sent", "expected", "said"),
    [
        ("int8", "bfloat16", r"2 tensors, expected 1"),
        ("float32", "bfloat16", r"as torch\.float32 .*, expected torch\.bfloat16"),
        ("bfloat16", "float32", r"as torch\.bfloat16 .*, expected torch\.float32"),
    ],
)
def test_a_message_in_another_form_than_the_job_s_is_refused(sent, expected, said):
    job, other = (tiny_job(wire={"activations": form}) for form in (expected, sent))
    setups, plan = setups_of(job, [[12]])
    setups["c0.s0"] = replace(setups["c0.s0"], job=other)
    weights = make_weights(job, JOB_FILE)
    control = run_control(plan, job, setups, 10, job.stop.samples, None)
    run = LocalRun(setups, {name: StageState(weights, {}, 0) for name in setups}, control)
    with pytest.raises(RunFailed, match=rf"^c0\.s0 sent Activation with .*{said}"):
        run.run()


def test_a_stage_whose_numbers_overflow_is_named():
    job = tiny_job(wire={"activations": "int8"}, average_every=100_000)
    run = local_run(job, parts=(3,))
    weights = dict(run.stages["c0.s0"].compute.module.named_parameters())
    with torch.no_grad():
        weights["words.weight"].fill_(float("nan"))
    with pytest.raises(RunFailed, match=r"^c0\.s0 sent activations whose '.*' cannot be read: .*diverged"):
        run.run()


@pytest.mark.parametrize("form", FORMS[1:])
def test_masks_cross_exactly_beside_short_activations(form):
    job = tiny_job(
        model={"factory": "several:masked"},
        data={"factory": "several:counting"},
        wire={"activations": form, "gradients": form},
        evaluate_every=60,
    )
    result = local_run(job, parts=(3, 2)).run()
    assert result.evaluations[-1].loss[0] < 0.95 * result.evaluations[0].loss[0]
