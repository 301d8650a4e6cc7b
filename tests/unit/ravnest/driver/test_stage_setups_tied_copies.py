"""Which stages average the copies of a tied parameter; whole runs with `tied: averaged`, on real stages and rings."""

import random

import pytest
import torch

from cluster_planner import SpanCosts
from ravnest.driver.stage_setups import tied_copies
from ravnest.job.initial_weights import make_weights
from ravnest.stage import messages as m
from ravnest.stage.tied import TiedSetup
from tests.support.local import JOB_FILE, Start, captured_job, local_run, setups_of, tiny_job
from tests.support.state import saved
from tests.unit.ravnest.driver.test_in_process_models import plain_losses

GPT = {"model": {"factory": "tied:gpt"}, "tied": "averaged"}
EVERYWHERE = {"model": {"factory": "tied:everywhere"}, "tied": "averaged"}
SGD = {"name": "sgd", "lr": 0.1}
TABLE = "words.weight"


def parameter(run, stage):
    return dict(run.stages[stage].compute.module.named_parameters())[TABLE].detach()


def test_owner_and_borrowers_of_all_clusters_are_one_ring_and_frozen_parameters_need_none():
    captured = captured_job(tiny_job(**EVERYWHERE))
    count = len(captured.units)
    thirds = [captured.span(count * i // 3, count * (i + 1) // 3) for i in range(3)]
    (found,) = tied_copies({"c0": thirds, "c1": [captured.span(0, count)]})
    assert found.names == (TABLE,)
    assert found.elements == 11 * 16
    users = [
        ("c0", i)
        for i, program in enumerate(thirds)
        if TABLE in {s.name for s in (*program.parameters, *program.borrowed)}
    ]
    assert found.members == (*users, ("c1", 0))
    assert len(users) > 1
    assert tied_copies({"c0": [captured.span(0, count)]}) == []


def test_a_copy_is_a_segment_of_its_own_and_nothing_travels_along_the_pipeline():
    setups, plan = setups_of(tiny_job(**GPT), parts=(3, 2, 1))
    assert all(setup.tied == TiedSetup() for setup in setups.values())
    holding = {
        name: [segment for segment in setup.segments if TABLE in segment.names] for name, setup in setups.items()
    }
    assert [name for name, found in holding.items() if found] == ["c0.s0", "c0.s2", "c1.s0", "c1.s1", "c2.s0"]
    found = [segment for each in holding.values() for segment in each]
    assert {(segment.ring, segment.members, segment.parameters) for segment in found} == {
        (len(plan.rings), ("c0.s0", "c0.s2", "c1.s0", "c1.s1", "c2.s0"), (TABLE,))
    }
    assert sum(segment.keeper for segment in found) == 1
    assert [segment.copies for segment in found] == [2, 2, 2, 2, 1]  # a cluster's samples count once


@pytest.mark.parametrize("changes", [GPT, EVERYWHERE], ids=["gpt", "everywhere"])
@pytest.mark.parametrize("parts", [(3, 2), (4, 1)])
def test_copies_are_one_after_the_last_round_and_the_checkpoint_has_it_once(changes, parts):
    job = tiny_job(**changes, optimizer={"name": "adamw", "lr": 0.02}, stop={"samples": 480}, average_every=96)
    run = local_run(job, parts=parts)
    result = run.run()
    assert all(max(found) <= 1 for found in result.staleness.values())
    assert result.checkpoints[-1].keys() == make_weights(job, JOB_FILE).keys()
    users = [name for name, stage in run.stages.items() if any(TABLE in s.names for s in stage.setup.segments)]
    assert len(users) > len(parts)
    assert all(torch.equal(parameter(run, name), result.checkpoints[-1][TABLE]) for name in users)


def test_until_a_round_copies_are_parameters_of_their_own_and_then_their_mean():
    """So a run whose only round is the last one trains as if the model were not tied."""
    changes = {"optimizer": {"name": "adamw", "lr": 0.02}, "average_every": 100_000}
    job, untied = tiny_job(**GPT, **changes), tiny_job(**changes)
    weights = make_weights(job, JOB_FILE)
    apart = {**weights, "head.weight": weights[TABLE].clone()}
    start = Start(apart, {f"c0.s{index}": {} for index in range(3)}, {"c0": 0}, 0)
    expected = local_run(untied, parts=(3,), start=start).run()
    found = local_run(job, parts=(3,)).run()
    assert found.losses == expected.losses
    ends = expected.checkpoints[-1]
    mean = (ends[TABLE] + ends["head.weight"]) / 2
    assert (ends[TABLE] - ends["head.weight"]).abs().max() > 0.1
    torch.testing.assert_close(found.checkpoints[-1].pop(TABLE), mean, atol=1e-6, rtol=0)
    assert all(torch.equal(tensor, ends[name]) for name, tensor in found.checkpoints[-1].items())


def test_in_one_stage_there_is_nothing_to_average():
    """Nor in two clusters of one stage each."""
    for parts in ((1,), (1, 1)):
        job = tiny_job(**EVERYWHERE, optimizer={"name": "adamw", "lr": 0.02})
        found = local_run(job, parts=parts).run()
        exact = local_run(job.model_copy(update={"tied": "exact"}), parts=parts).run()
        assert found.losses == exact.losses
        assert all(torch.equal(found.checkpoints[-1][name], t) for name, t in exact.checkpoints[-1].items())


def test_it_learns_beside_exact():
    job = tiny_job(**EVERYWHERE, optimizer={"name": "adamw", "lr": 0.01}, stop={"samples": 1200}, average_every=96)
    ends = {}
    for tied in ("exact", "averaged"):
        (evaluated,) = local_run(job.model_copy(update={"tied": tied}), parts=(3,)).run().evaluations
        ends[tied] = evaluated.loss[0] / evaluated.loss[1]
    first = plain_losses(job.model_copy(update={"optimizer": tiny_job(optimizer=SGD).optimizer}), 1)[0][0]
    assert ends["averaged"] < 0.5 * first
    assert ends["averaged"] == pytest.approx(ends["exact"], abs=0.1 * first)


@pytest.mark.parametrize("seed", range(3))
def test_in_whatever_order_stages_take_their_turns_copies_agree_in_the_end(seed):
    draw = random.Random(seed)

    def order(stages):
        return draw.sample(stages, draw.randint(1, len(stages)))

    job = tiny_job(**EVERYWHERE, optimizer=SGD, max_staleness=seed % 3, average_every=48, max_lag=2)
    run = local_run(job, parts=(4, 2), order=order)
    result = run.run()
    assert all(max(found) <= seed % 3 for found in result.staleness.values())
    assert torch.equal(parameter(run, "c0.s0"), parameter(run, "c0.s3"))
    assert torch.equal(parameter(run, "c0.s0"), parameter(run, "c1.s1"))


def test_nothing_of_it_is_sent_along_the_pipeline():
    run = local_run(tiny_job(**GPT), parts=(3,))
    sent = []
    for stage in run.stages.values():
        plain = stage.endpoint.send

        def send(peer, lane, message, tensors=(), *, plain=plain):
            sent.append(type(message))
            plain(peer, lane, message, tensors)

        stage.endpoint.send = send
    run.run()
    assert m.Gradient in sent
    assert not {m.TiedWeights, m.TiedGradients} & set(sent)


def test_a_resumed_run_goes_on_with_each_copy_s_own_optimizer_state():
    job = tiny_job(**GPT, optimizer={"name": "adamw", "lr": 0.02}, average_every=96)
    first = local_run(job, parts=(3,))
    anchor = first.run().checkpoints[-1]
    optimizer = {name: saved(stage.rounds)[1] for name, stage in first.stages.items()}
    moments = [optimizer[name][TABLE, "exp_avg"] for name in ("c0.s0", "c0.s2")]
    assert not torch.equal(*moments)
    start = Start(anchor, optimizer, first.control.updates, first.control.samples)
    later = local_run(
        job.model_copy(update={"stop": job.stop.model_copy(update={"samples": 480})}), parts=(3,), start=start
    )
    result = later.run()
    assert sum(result.losses["c0"][-6:]) < sum(first.result.losses["c0"][:6])
    assert torch.equal(parameter(later, "c0.s0"), parameter(later, "c0.s2"))


@pytest.mark.parametrize("staleness", [0, 1])
def test_a_large_table_takes_what_the_plan_says_at_each_of_its_copies(staleness):
    job = tiny_job(
        model={"factory": "tied:large"},
        tied="averaged",
        split_backward="never",  # a split one would keep the gradient of what the head computes and the model cuts off
        optimizer={"name": "adamw", "lr": 0.01},
        max_staleness=staleness,
        stop={"samples": 96},
    )
    run = local_run(job, parts=(3,))
    run.run()
    _, plan = setups_of(job, parts=(3,))
    spans = SpanCosts(plan.costs, plan.workload)
    for index, stage in enumerate(plan.clusters[0].stages):
        planned = spans.stage_memory_bytes(*stage.units, (index, 3), plan.clusters[0].window)
        planned -= plan.workload.process_bytes
        measured = sum(run.stages[f"c0.s{index}"].compute.peaks.bytes.values())
        if index == 1:  # activations only
            assert measured < 10**6 < 20_000 * 16 * 4
            continue
        assert measured <= 1.1 * planned, (index, measured, planned)
        assert measured > 0.7 * planned, (index, measured, planned)
