import math

import pytest
import torch
from torch.nn import functional

from ravnest.errors import RunFailed
from ravnest.experts.askers import close_grids, open_grid
from ravnest.experts.batch_calls import Asker
from ravnest.job.materials import load_data, make_model
from ravnest.stage.device import HostDevice
from ravnest.stage.rounds import SegmentAverage
from ravnest.training.batches import fetch
from tests.support.experts import LocalClient, small_grid
from tests.support.local import JOB_FILE, local_run, tiny_job
from tests.support.state import saved


def computes(parts=(2,), **changes):
    run = local_run(tiny_job(**changes), parts=parts)
    return [stage.compute for stage in run.stages.values()]


def group(first, last, update_every=3):
    """A whole update's forwards and backwards; the squared norms at its end."""
    norms = ()
    for micro_batch in range(update_every):
        last.forward(micro_batch, first.forward(micro_batch, ()))
        ends = micro_batch == update_every - 1
        gradients, last_norm = last.backward(micro_batch, (), ends)
        sent, first_norm = first.backward(micro_batch, gradients, ends)
        assert sent == ()
        norms = (first_norm, last_norm)
    return norms


def test_a_last_stage_keeps_its_loss_and_reports_each_once():
    first, last = computes()
    assert last.forward(0, first.forward(0, ())) == ()
    for tensor in last.backward(0, (), False)[0]:
        assert torch.isfinite(tensor).all()
        assert tensor.abs().sum() > 0
    for micro_batch in (1, 2, 3):  # one of the next group too
        last.forward(micro_batch, first.forward(micro_batch, ()))
    for micro_batch in (1, 2):
        last.backward(micro_batch, (), micro_batch == 2)
    lr, losses = last.update(None)
    assert lr == pytest.approx(1e-2)
    assert len(losses) == 3
    assert all(1.0 < loss < 4.0 for loss in losses)


def test_samples_are_counted_since_they_were_last_asked_for():
    first, last = computes()
    group(first, last)
    for compute in (first, last):
        compute.update(None)
    assert first.take_samples() == 12
    assert first.take_samples() == 0


def test_norms_are_told_only_when_clipping_asks_and_only_at_the_end_of_a_group():
    first, last = computes()
    assert group(first, last) == (None, None)
    first, last = computes(optimizer={"name": "sgd", "lr": 0.1, "clip_norm": 0.5})
    last.forward(0, first.forward(0, ()))
    assert last.backward(0, (), False)[1] is None
    first, last = computes(optimizer={"name": "sgd", "lr": 0.1, "clip_norm": 0.5})
    assert all(norm > 0 for norm in group(first, last))


def test_clipping_scales_the_step_to_the_global_norm():
    config = {"name": "sgd", "lr": 1.0, "clip_norm": 0.01}
    first, last = computes(optimizer=config)
    before = [compute.weights.flat().clone() for compute in (first, last)]
    norm_sq = sum(group(first, last))
    assert math.sqrt(norm_sq) > 0.01
    for compute in (first, last):
        compute.update(norm_sq)
    moved = [compute.weights.flat() - old for compute, old in zip((first, last), before, strict=True)]
    assert torch.cat(moved).norm().item() == pytest.approx(0.01, rel=1e-3)


def test_a_loss_that_is_not_finite_names_the_micro_batch_and_the_cluster():
    first, last = computes()
    broken = tuple(torch.full_like(tensor, float("nan")) for tensor in first.forward(0, ()))
    with pytest.raises(RunFailed, match="the loss of micro-batch 0 of c0 is nan: diverged"):
        last.forward(0, broken)


def test_an_evaluation_sums_over_its_batches_and_is_forgotten():
    first, last = computes(metrics=["accuracy"])
    for batch in (0, 0):
        assert last.evaluate(1, batch, first.evaluate(1, batch, ())) == ()
    last.evaluate(2, 0, first.evaluate(2, 0, ()))
    twice, once = last.evaluation_sums(1), last.evaluation_sums(2)
    assert twice.loss.count == 2 * once.loss.count == 160
    assert twice.loss.total == pytest.approx(2 * once.loss.total)
    assert twice.metrics[0].count == 160
    with pytest.raises(KeyError):
        last.evaluation_sums(1)


MOODY = {
    "dropout": {"model": {"factory": "tiny:gpt", "args": {"dropout": 0.3}}},
    "batch-norm": {"model": {"factory": "tiny:cnn"}, "data": {"factory": "tiny:images"}},
}
"""Models that behave otherwise in training than in evaluation."""


@pytest.mark.parametrize("kind", MOODY)
def test_an_evaluation_in_the_middle_of_training_is_the_eager_model_s_own(kind):
    job = tiny_job(**MOODY[kind])
    first, last = computes(**MOODY[kind])
    for _ in range(2):
        group(first, last)
        first.update(None)
        last.update(None)
    last.evaluate(1, 0, first.evaluate(1, 0, ()))
    model = make_model(job, JOB_FILE)
    state = {name: tensor for compute in (first, last) for name, tensor in compute.module.state_dict().items()}
    model.load_state_dict(state, strict=True)
    inputs, target = fetch(load_data(job, JOB_FILE).held_out, range(10))
    losses = []
    with torch.no_grad():
        for training in (False, True):
            output = model.train(training)(*inputs)
            losses.append(functional.cross_entropy(output.flatten(0, -2), target.flatten()).item())
    measured = last.evaluation_sums(1).loss
    assert measured.total / measured.count == pytest.approx(losses[0], rel=1e-5)
    assert losses[1] != pytest.approx(losses[0], rel=1e-3)  # so that the mode can be told from the loss


@pytest.mark.parametrize("kind", MOODY)
def test_training_after_an_evaluation_goes_on_as_if_there_had_been_none(kind):
    quiet, watched = computes(**MOODY[kind]), computes(**MOODY[kind])
    for first, last in (quiet, watched):
        for update in range(2):
            group(first, last)
            first.update(None)
            last.update(None)
            if first is watched[0] and update == 0:
                last.evaluate(1, 0, first.evaluate(1, 0, ()))
    for one, other in zip(quiet, watched, strict=True):
        state, theirs = one.module.state_dict(), other.module.state_dict()
        assert [name for name in state if not torch.equal(state[name], theirs[name])] == []


def test_a_backward_uses_the_weights_of_its_forward():
    plain, changed = computes()[0], computes()[0]
    upstream = torch.Generator().manual_seed(1)
    outputs = plain.forward(0, ())
    changed.forward(0, ())
    gradients = tuple(torch.randn(tensor.shape, generator=upstream) for tensor in outputs)
    names = changed.weights.names
    changed.weights.add_correction(names, torch.ones_like(changed.weights.flat(names)))
    for compute in (plain, changed):
        compute.backward(0, gradients, True)
    assert changed.weights.norm_sq() == pytest.approx(plain.weights.norm_sq(), rel=1e-6)


@pytest.mark.parametrize("checkpointing", ["never", "always"])
def test_experts_are_asked_once_for_a_micro_batch_whatever_is_forgotten(checkpointing):
    client = LocalClient(small_grid())
    open_grid("test", Asker(client))
    try:
        made = computes(
            parts=(1,),
            model={"factory": "tests.support.experts:calling"},
            data={"factory": "tests.support.experts:vectors"},
            loss={"function": "torch.nn.functional:mse_loss"},
            experts={"peers": ["127.0.0.1:9"]},
            activation_checkpointing=checkpointing,
        )
        made[0].forward(0, ())
        asked = len(client.calls)
        made[0].backward(0, (), False)
    finally:
        close_grids()
    forwards, backwards = client.calls[:asked], client.calls[asked:]
    assert forwards
    assert len(backwards) == len(forwards)
    assert {one.updates for one in forwards} == {None}
    assert {one.updates for one in backwards} == {0}


@pytest.mark.parametrize("split", ["never", "always"])
def test_what_was_sent_stays_as_it_was_while_the_next_micro_batches_are_computed(split):
    job = tiny_job(model={"factory": "places:model"}, micro_batch=1, split_backward=split)
    run = local_run(job, cuts=[[2]])
    first, last = (stage.compute for stage in run.stages.values())
    sent = []
    for micro_batch in range(3):
        last.forward(micro_batch, first.forward(micro_batch, ()))
        if split == "always" and micro_batch:
            gradients, _ = last.input_gradients(micro_batch, ())
            last.weight_gradients(micro_batch)
        else:
            gradients, _ = last.backward(micro_batch, (), False)
        sent.append((gradients, [gradient.clone() for gradient in gradients]))
        first.backward(micro_batch, gradients, False)
    assert "places" in last.weights.names
    assert all(torch.equal(now, then) for pair in sent for now, then in zip(*pair, strict=True))


def test_a_stage_gives_its_weights_and_its_optimizer_s_state_to_be_saved():
    (stage,) = local_run(tiny_job(), parts=(1,)).stages.values()
    compute, rounds = stage.compute, stage.rounds
    for round_ in (1, 2):
        for micro_batch in range(3):
            compute.forward(micro_batch, ())
            compute.backward(micro_batch, (), micro_batch == 2)
        compute.update(None)
        averages = {
            part.ring: SegmentAverage(part.vector, part.buffers, part.counters, part.weight)
            for part in rounds.snapshot(round_, compute.take_samples())
        }
        rounds.merge(round_, averages)
        compute.weights_moved()
    weights, optimizer = saved(rounds)
    assert weights
    assert {key for _, key in optimizer} == {"step", "exp_avg", "exp_avg_sq"}


def test_the_quick_seed_draws_what_torch_manual_seed_draws():
    torch.manual_seed(2**63 + 7)
    expected = torch.rand(5)
    HostDevice().seed(2**63 + 7)
    assert torch.equal(torch.rand(5), expected)
