import pytest
import torch
from torch import nn
from torch.nn import functional

from experiments.pipeline.delays import Delayed, by_depth, uniform
from ravnest.job.initial_weights import make_weights
from ravnest.job.materials import load_data, make_model
from ravnest.training.batches import fetch
from ravnest.training.optimizer import OptimizerConfig
from ravnest.training.sampler import Sampler
from tests.support.local import JOB_FILE, local_run, tiny_job


def small():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5), nn.Tanh(), nn.Linear(5, 3))


def batches(count):
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(6, 4, generator=generator), torch.randint(3, (6,), generator=generator)) for _ in range(count)]


def test_delays_by_depth_fall_from_the_first_stage_to_the_last():
    delays = by_depth(small(), 3)
    assert [delays[name] for name in ("0.weight", "0.bias", "1.weight", "3.bias")] == [2, 2, 1, 0]
    assert set(by_depth(small(), 1).values()) == {0}
    assert sorted(set(by_depth(small(), 32).values()), reverse=True) == [31, 21, 10]
    assert set(uniform(small(), 1).values()) == {1}


@pytest.mark.parametrize("clip_norm", [None, 0.1])
def test_without_delay_it_is_a_plain_loop_bit_for_bit(clip_norm):
    config = OptimizerConfig(name="adamw", lr=0.02, clip_norm=clip_norm)
    model, plain = small(), small()
    losses = [
        loss for _, loss in Delayed(model, uniform(model, 0), config, functional.cross_entropy).train(batches(6), 6)
    ]
    optimizer = torch.optim.AdamW(plain.parameters(), lr=0.02)
    for loss, (x, y) in zip(losses, batches(6), strict=True):
        expected = functional.cross_entropy(plain(x), y)
        assert loss == (expected.item() if clip_norm is None else pytest.approx(expected.item(), abs=1e-6))
        expected.backward()
        if clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(plain.parameters(), clip_norm)
        optimizer.step()
        optimizer.zero_grad()
    ours, theirs = model.state_dict(), plain.state_dict()
    assert all(torch.allclose(ours[name], theirs[name], atol=1e-6 if clip_norm else 0.0) for name in theirs)


def test_each_stage_uses_weights_of_its_own_age():
    """By hand: the gradient of update u at versions u − delay of each stage's weights."""
    model = small()
    delays = by_depth(model, 3)
    config = OptimizerConfig(name="sgd", lr=0.3, momentum=0.9, correction="none")
    found = [loss for _, loss in Delayed(model, delays, config, functional.cross_entropy).train(batches(8), 8)]
    versions = [{name: p.detach().clone() for name, p in small().named_parameters()}]
    momentum = {name: torch.zeros_like(p) for name, p in versions[0].items()}
    for update, (x, y) in enumerate(batches(8)):
        used = {name: versions[max(0, update - delay)][name].requires_grad_() for name, delay in delays.items()}
        loss = functional.cross_entropy(torch.func.functional_call(small(), used, (x,)), y)
        assert found[update] == pytest.approx(loss.item(), abs=1e-6)
        for name, gradient in zip(used, torch.autograd.grad(loss, list(used.values())), strict=True):
            momentum[name] = 0.9 * momentum[name] + gradient
        versions.append({name: p.detach() - 0.3 * momentum[name] for name, p in versions[-1].items()})
    assert all(torch.allclose(p, versions[-1][name], atol=1e-6) for name, p in model.named_parameters())


def test_it_ends_when_the_loss_is_not_finite():
    model = small()
    given = [*batches(2), (torch.full((6, 4), torch.nan), torch.zeros(6, dtype=torch.long)), *batches(1)]
    run = Delayed(model, uniform(model, 1), OptimizerConfig(), functional.cross_entropy).train(given, 4)
    assert [update for update, _ in run] == [1, 2]


@pytest.mark.parametrize("correction", ["none", "look_ahead"])
def test_it_is_what_the_real_stages_compute(correction):
    """Three stages of the runtime, one update a micro-batch, once their staleness is steady from the start on."""
    job = tiny_job(
        update_every=1,
        max_staleness=2,
        average_every=100_000,
        stop={"samples": 160},
        split_backward="never",  # trying it out would shift the order of one micro-batch
        optimizer={"name": "adamw", "lr": 0.01, "correction": correction},
    )
    run = local_run(job, parts=(3,))
    result = run.run()
    model = make_model(job, JOB_FILE)
    model.load_state_dict(make_weights(job, JOB_FILE))
    delays = {}
    for stage in run.stages.values():
        seen = result.staleness[stage.setup.name]
        steady = seen[-1]
        assert seen == [min(steady, update) for update in range(len(seen))]
        delays |= {spec.name: steady for spec in stage.setup.program.parameters}
    assert max(delays.values()) == 2
    data = load_data(job, JOB_FILE)
    sampler = Sampler(len(data.train), job.seed, (0.0, 1.0), job.micro_batch)
    given = (
        (inputs, y) for (inputs,), y in (fetch(data.train, sampler.batch(k)) for k in range(len(result.losses["c0"])))
    )

    def loss(output, target):
        return functional.cross_entropy(output.flatten(0, -2), target.flatten())

    found = [value for _, value in Delayed(model, delays, job.optimizer, loss).train(given, 1)]
    assert result.losses["c0"] == pytest.approx(found, abs=2e-5)
