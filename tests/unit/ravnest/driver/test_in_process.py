"""The invariants of design §11 that a whole run must keep, on the real stages and rings in one thread."""

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional

from ravnest.driver import instructions as ins
from ravnest.job.config import StopConfig
from ravnest.job.initial_weights import make_weights
from ravnest.job.materials import load_data, make_model
from ravnest.training.batches import fetch
from ravnest.training.corrections import corrected
from ravnest.training.sampler import Sampler
from tests.support.jobs.partly_frozen import FROZEN
from tests.support.local import JOB_FILE, Start, local_run, tiny_job
from tests.support.state import saved

SHARE_OF_ALL = (0.0, 1.0)


def plain_loop(job, updates):
    """The losses and weights of ordinary PyTorch training on the same micro-batches."""
    torch.set_num_threads(1)
    model = make_model(job, JOB_FILE)
    model.load_state_dict(make_weights(job, JOB_FILE))
    data = load_data(job, JOB_FILE)
    sampler = Sampler(len(data.train), job.seed, SHARE_OF_ALL, job.micro_batch)
    arguments = {"lr": job.optimizer.lr, **job.optimizer.arguments}
    optimizer = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD, "nadam": torch.optim.NAdam}[job.optimizer.name](
        model.parameters(), **arguments
    )
    losses = []
    for k in range(updates * job.update_every):
        (inputs,), target = fetch(data.train, sampler.batch(k))
        output = model(inputs)
        loss = functional.cross_entropy(output.flatten(0, -2), target.flatten())
        losses.append(loss.item())
        (loss / job.update_every).backward()
        if (k + 1) % job.update_every == 0:
            if job.optimizer.clip_norm is not None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), job.optimizer.clip_norm)
            optimizer.step()
            optimizer.zero_grad()
    return losses, model.state_dict()


@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "nadam"])
def test_one_stage_gives_bitwise_the_losses_of_a_plain_loop(optimizer):
    job = tiny_job(optimizer={"name": optimizer, "lr": 0.01}, average_every=100_000)
    run = local_run(job, parts=(1,))
    result = run.run()
    expected, weights = plain_loop(job, run.control.updates["c0"])
    assert result.losses["c0"] == expected
    anchor = result.checkpoints[-1]
    assert max((anchor[name] - weights[name]).abs().max() for name in weights) < 1e-6


def test_one_stage_is_bitwise_equal_with_rounds_of_its_own_too():
    job = tiny_job(average_every=24)
    run = local_run(job, parts=(1,))
    assert run.run().losses["c0"] == plain_loop(job, run.control.updates["c0"])[0]
    assert run.control.rounds_committed >= 10


@pytest.mark.parametrize("clip_norm", [None, 0.5])
def test_a_flush_at_each_update_equals_synchronous_training(clip_norm):
    optimizer = {"name": "sgd", "lr": 0.05, "momentum": 0.9, "clip_norm": clip_norm}
    job = tiny_job(max_staleness=0, optimizer=optimizer)
    run = local_run(job, parts=(3,))
    result = run.run()
    expected, weights = plain_loop(job, run.control.updates["c0"])
    assert result.losses["c0"] == pytest.approx(expected, abs=1e-6)
    assert all(set(found) == {0} for found in result.staleness.values())
    anchor = result.checkpoints[-1]
    assert max((anchor[name] - weights[name]).abs().max() for name in weights) < 1e-6


@pytest.mark.parametrize("clip_norm", [None, 0.5])
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_a_synchronous_schedule_equals_plain_training_with_rounds_and_evaluations(schedule, clip_norm):
    optimizer = {"name": "sgd", "lr": 0.05, "momentum": 0.9, "clip_norm": clip_norm}
    job = tiny_job(schedule=schedule, optimizer=optimizer, update_every=4, evaluate_every=64)
    run = local_run(job, parts=(3,))
    result = run.run()
    expected, weights = plain_loop(job, run.control.updates["c0"])
    assert result.losses["c0"] == pytest.approx(expected, abs=1e-6)
    assert all(set(found) == {0} for found in result.staleness.values())
    assert len(result.evaluations) >= 3
    assert run.control.rounds_committed >= 3
    anchor = result.checkpoints[-1]
    assert max((anchor[name] - weights[name]).abs().max() for name in weights) < 1e-6


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_two_clusters_with_a_synchronous_schedule_average_and_agree(schedule):
    run = local_run(tiny_job(schedule=schedule), parts=(2, 3))
    result = run.run()
    assert all(set(found) == {0} for found in result.staleness.values())
    assert run.control.rounds_committed >= 2
    assert len(result.losses["c0"]) > 0 < len(result.losses["c1"])


def delayed_loop(job, run, result):
    """Training of the whole model by hand, each stage's forward of each micro-batch with the weights that it said.

    For one cluster: the losses, and the weights at the end. A staleness of d in update u means version u - d.
    """
    stages = [stage.setup for stage in run.stages.values()]
    model = make_model(job, JOB_FILE)
    versions = [{name: p.clone() for name, p in make_weights(job, JOB_FILE).items()}]
    live = {name: nn.Parameter(tensor.clone()) for name, tensor in versions[0].items()}
    own = {setup.name: [live[spec.name] for spec in setup.program.parameters] for setup in stages}
    optimizers = {
        name: torch.optim.SGD(mine, lr=job.optimizer.lr, **job.optimizer.arguments) for name, mine in own.items()
    }
    step = {name: corrected(job.optimizer.correction, optimizer) for name, optimizer in optimizers.items()}
    data = load_data(job, JOB_FILE)
    sampler = Sampler(len(data.train), job.seed, SHARE_OF_ALL, job.micro_batch)
    losses = []
    for k in range(len(result.losses["c0"])):
        update = k // job.update_every
        used = {
            spec.name: versions[update - result.staleness[setup.name][k]][spec.name].detach().requires_grad_()
            for setup in stages
            for spec in setup.program.parameters
        }
        (inputs,), target = fetch(data.train, sampler.batch(k))
        output = functional_call(model, used, (inputs,))
        loss = functional.cross_entropy(output.flatten(0, -2), target.flatten())
        losses.append(loss.item())
        gradients = torch.autograd.grad(loss / job.update_every, list(used.values()))
        for name, gradient in zip(used, gradients, strict=True):
            live[name].grad = gradient if live[name].grad is None else live[name].grad + gradient
        if (k + 1) % job.update_every == 0:
            for name, optimizer in optimizers.items():
                group = result.staleness[name][k + 1 - job.update_every : k + 1]
                step[name](job.optimizer.lr, sum(group) / len(group), update)
                optimizer.zero_grad()
            versions.append({name: parameter.detach().clone() for name, parameter in live.items()})
    return losses, versions[-1]


@pytest.mark.parametrize("max_staleness", [1, 2])
@pytest.mark.parametrize("correction", ["none", "look_ahead", "delay_adaptive"])
def test_a_pipeline_without_flushes_is_training_with_exactly_the_staleness_that_it_reports(max_staleness, correction):
    optimizer = {"name": "sgd", "lr": 0.2, "momentum": 0.9, "correction": correction}
    job = tiny_job(max_staleness=max_staleness, optimizer=optimizer, average_every=100_000)
    run = local_run(job, parts=(3,))
    result = run.run()
    assert max(result.staleness["c0.s0"]) == max_staleness
    expected, weights = delayed_loop(job, run, result)
    assert result.losses["c0"] == pytest.approx(expected, abs=2e-6)
    anchor = result.checkpoints[-1]
    assert max((anchor[name] - weights[name]).abs().max() for name in weights) < 1e-6
    result.staleness["c0.s0"] = [0] * len(result.staleness["c0.s0"])
    prompt, _ = delayed_loop(job, run, result)  # were the weights the newest, the losses would be others
    assert result.losses["c0"] != pytest.approx(prompt, abs=1e-3)


def test_a_bound_of_one_is_reached_and_never_passed():
    result = local_run(tiny_job(max_staleness=1), parts=(3,)).run()
    assert max(result.staleness["c0.s0"]) == 1
    assert all(max(found) <= 1 for found in result.staleness.values())


def test_all_members_of_a_ring_hold_the_same_anchor_byte_for_byte():
    run = local_run(tiny_job(stop={"samples": 480}), parts=(2, 3, 1))
    run.run()
    assert run.control.rounds_committed >= 5
    anchors: dict[int, list[bytes]] = {}
    for name, stage in run.stages.items():
        for segment in stage.setup.segments:
            assert name in segment.members
            anchors.setdefault(segment.ring, []).append(stage.rounds.anchor(segment.ring).numpy().tobytes())
    assert all(len(held) == 3 and len(set(held)) == 1 for held in anchors.values())


def test_two_clusters_learn_together():
    run = local_run(tiny_job(stop={"samples": 960}, optimizer={"name": "adamw", "lr": 0.02}), parts=(2, 3))
    result = run.run()
    (evaluated,) = result.evaluations
    assert evaluated.loss[0] / evaluated.loss[1] < 0.5 * 2.3979


def test_the_saved_weights_give_the_reported_held_out_loss():
    job = tiny_job(metrics=["accuracy"])
    result = local_run(job, parts=(2, 2)).run()
    model = make_model(job, JOB_FILE)
    model.load_state_dict(result.checkpoints[-1], strict=True)
    data = load_data(job, JOB_FILE)
    (inputs,), target = fetch(data.held_out, range(len(data.held_out)))
    with torch.no_grad():
        output = model.eval()(inputs)
    expected = functional.cross_entropy(output.flatten(0, -2), target.flatten()).item()
    (evaluated,) = result.evaluations
    assert evaluated.loss[0] / evaluated.loss[1] == pytest.approx(expected, rel=1e-5)
    hits = (output.argmax(-1) == target).sum().item()
    assert evaluated.metrics == ((hits, target.numel()),)


def test_batch_norm_is_updated_once_per_micro_batch():
    job = tiny_job(
        model={"factory": "tiny:cnn"}, data={"factory": "tiny:images"}, optimizer={"name": "sgd", "lr": 0.05}
    )
    run = local_run(job, parts=(2,))
    anchor = run.run().checkpoints[-1]
    micro_batches = run.control.updates["c0"] * job.update_every
    assert anchor["bn1.num_batches_tracked"].item() == anchor["bn2.num_batches_tracked"].item() == micro_batches
    together = local_run(job, parts=(2, 1))
    counted = together.run().checkpoints[-1]["bn1.num_batches_tracked"].item()
    assert counted >= max(together.control.updates.values()) * job.update_every


@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_evaluation_during_training_changes_nothing(dropout):
    job = {"model": {"factory": "tiny:gpt", "args": {"dropout": dropout}}, "average_every": 100_000}
    quiet = local_run(tiny_job(**job), parts=(2,)).run()
    watched = local_run(tiny_job(**job, evaluate_every=24), parts=(2,)).run()
    assert len(watched.evaluations) > 5
    for name, tensor in quiet.checkpoints[-1].items():
        assert torch.allclose(tensor, watched.checkpoints[-1][name], atol=1e-6), name


DROPOUT = {"model": {"factory": "tiny:gpt", "args": {"dropout": 0.2}}}


def test_the_same_run_twice_is_the_same_with_dropout_too():
    first = local_run(tiny_job(**DROPOUT), parts=(2,)).run()
    again = local_run(tiny_job(**DROPOUT), parts=(2,)).run()
    assert first.losses == again.losses
    assert all(torch.equal(first.checkpoints[-1][name], again.checkpoints[-1][name]) for name in again.checkpoints[-1])
    other = local_run(tiny_job(**DROPOUT, seed=4), parts=(2,)).run()
    assert other.losses != first.losses


def test_dropout_does_not_depend_on_the_order_in_which_stages_take_their_turns():
    """It does on the cuts: each stage draws from a seed of its own."""
    job = tiny_job(**DROPOUT, max_staleness=0)
    forth = local_run(job, parts=(3,)).run().losses["c0"]
    back = local_run(job, parts=(3,), order=lambda stages: list(reversed(stages))).run().losses["c0"]
    length = min(len(forth), len(back))
    assert length >= 30
    assert forth[:length] == back[:length]


def test_frozen_weights_are_in_every_checkpoint_and_as_they_were():
    job = tiny_job(model={"factory": "partly_frozen:gpt"})
    anchors = local_run(job, parts=(2, 3)).run().checkpoints
    start = make_weights(job, JOB_FILE)
    for anchor in anchors:
        make_model(job, JOB_FILE).load_state_dict(anchor, strict=True)
        same = {name for name in start if torch.equal(anchor[name], start[name])}
        assert same == set(FROZEN)


def test_a_stop_at_once_ends_with_the_update_that_was_begun():
    run = local_run(tiny_job(), parts=(2,))
    run.follow(run.control.stop(evaluate=False))
    run.run()
    assert run.control.phase is ins.RunPhase.DONE
    assert run.control.samples == 12


def test_rounds_without_new_samples_leave_batch_norm_as_it_was():
    job = tiny_job(model={"factory": "tiny:cnn"}, data={"factory": "tiny:images"}, average_every=12)
    anchor = local_run(job, parts=(1, 1)).run().checkpoints[-1]
    assert anchor["bn1.running_var"].min() > 0.01


def test_a_resumed_run_goes_on_where_the_last_round_was():
    job = tiny_job(max_staleness=0, average_every=100_000, optimizer={"name": "sgd", "lr": 0.05, "momentum": 0.9})
    expected, _ = plain_loop(job, updates=42)
    first = local_run(job, parts=(2,))
    anchor = first.run().checkpoints[-1]
    done = len(first.result.losses["c0"])
    assert first.control.samples == done * job.micro_batch
    optimizer = {name: saved(stage.rounds)[1] for name, stage in first.stages.items()}
    start = Start(anchor, optimizer, first.control.updates, first.control.samples)
    second = local_run(job.model_copy(update={"stop": StopConfig(samples=480)}), parts=(2,), start=start)
    later = second.run().losses["c0"]
    assert done + len(later) >= 120
    assert later == pytest.approx(expected[done : done + len(later)], abs=1e-5)


def test_a_checkpoint_in_mid_training_counts_the_samples_behind_its_weights():
    """With three clusters and lag, commits come well after the snapshots."""
    job = tiny_job(max_lag=3, update_every=2, average_every=16, evaluate_every=1, stop={"samples": 400})
    run = local_run(job, parts=(2, 3, 1))
    result = run.run()
    assert len(result.begun) == len(result.checkpoints) > 5
    per_update = job.micro_batch * job.update_every
    for begun in result.begun:
        assert begun.samples == per_update * sum(begun.updates.values())
    assert result.begun[-1].samples == run.control.samples


def test_a_run_resumed_from_mid_training_repeats_what_was_dropped_and_goes_on():
    """Synchronous, one cluster, SGD without state: the checkpoint's position alone decides what follows."""
    job = tiny_job(max_staleness=0, average_every=24, evaluate_every=60, optimizer={"name": "sgd", "lr": 0.05})
    first = local_run(job, parts=(2,))
    losses = first.run().losses["c0"]
    begun, anchor = first.result.begun[1], first.result.checkpoints[1]
    assert 0 < begun.samples < job.stop.samples - 60
    bare: dict[str, dict] = {name: {} for name in first.stages}
    second = local_run(job, parts=(2,), start=Start(anchor, bare, begun.updates, begun.samples))
    at = begun.updates["c0"] * job.update_every
    assert second.run().losses["c0"] == pytest.approx(losses[at:], abs=1e-5)
    assert second.control.samples == first.control.samples


def test_a_run_may_stop_by_minutes():
    job = tiny_job(stop={"minutes": 0.001})  # of the run's own clock: a millisecond a turn
    run = local_run(job, parts=(2,))
    assert len(run.run().losses["c0"]) > 0
    assert 0.06 <= run.now() < 1.0
