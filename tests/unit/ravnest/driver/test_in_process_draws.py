"""Datasets and collate functions that draw random numbers train to what a plain loop reaches, and evaluate alike."""

from typing import Any

import pytest
import torch

from ravnest.driver.in_process import LocalRun
from ravnest.job.config import Job
from ravnest.job.initial_weights import make_weights
from ravnest.job.materials import load_data, make_model
from ravnest.training.batches import arguments
from ravnest.training.losses import build_loss
from ravnest.training.streams import sampler_of
from tests.support.local import JOB_FILE, local_run, tiny_job

LEARNING = {"micro_batch": 4, "update_every": 2, "max_staleness": 0, "optimizer": {"name": "adamw", "lr": 2e-2}}
ROTATIONS: dict[str, Any] = {"model": {"factory": "drawing:looker"}, "data": {"factory": "drawing:rotations"}}
STREAMED: dict[str, Any] = {**ROTATIONS, "data": {"factory": "drawing:streamed"}}
MASKED: dict[str, Any] = {
    "model": {"factory": "drawing:guesser"},
    "data": {"factory": "drawing:sentences", "collate_fn": "drawing:masked"},
}


def plain(job: Job) -> tuple[list[float], float]:
    """The losses of an ordinary loop over the same micro-batches, and the held-out loss after it."""
    data, model = load_data(job, JOB_FILE), make_model(job, JOB_FILE)
    model.load_state_dict(make_weights(job, JOB_FILE))
    sampler = sampler_of(data.train, job.seed, (0.0, 1.0), job.micro_batch)
    optimizer = torch.optim.AdamW(model.parameters(), lr=job.optimizer.lr)
    loss, losses = build_loss(job.loss), []
    assert job.stop.samples is not None
    for k in range(job.stop.samples // job.micro_batch):
        args, kwargs = arguments((batch := data.train.batch(sampler.batch(k), sampler.epoch(k)))[0])
        one = loss.mean(model(*args, **kwargs), batch[1])
        losses.append(one.item())
        (one / job.update_every).backward()
        if (k + 1) % job.update_every == 0:
            optimizer.step()
            optimizer.zero_grad()
    inputs, target = data.held_out.batch(range(len(data.held_out)))
    args, kwargs = arguments(inputs)
    with torch.no_grad():
        return losses, loss.mean(model(*args, **kwargs), target).item()


def trained(job: Job, parts: int) -> LocalRun:
    run = local_run(job, parts=(parts,))
    run.run()
    return run


@pytest.mark.parametrize(("kind", "chance_nats"), [(ROTATIONS, 1.386), (STREAMED, 1.386), (MASKED, 1.946)])
def test_a_pipeline_learns_from_drawn_samples_what_a_plain_loop_learns(kind: Any, chance_nats: float) -> None:
    job = tiny_job(**kind, **LEARNING, stop={"samples": 480}, average_every=48)
    losses, held_out = plain(job)
    assert held_out < 0.6 * chance_nats, "the task can be learnt"
    run = trained(job, 2)
    found = run.result.losses["c0"][: len(losses)]
    assert found == pytest.approx(losses, abs=2e-4)
    total, count = run.result.evaluations[-1].loss
    # Batches of evaluation are smaller, and a collate function draws for each of them anew.
    assert total / count == pytest.approx(held_out, abs=0.25 if kind is MASKED else 1e-3)
