"""Whole runs of models with tied parameters that lie in several stages: the one stage that owns each trains it."""

import random

import pytest
import torch

from cluster_planner import SpanCosts
from ravnest.driver.preparation import needed
from ravnest.job.initial_weights import make_weights
from ravnest.job.materials import make_model
from ravnest.stage import messages as m
from tests.support.local import JOB_FILE, Start, captured_job, local_run, setups_of, tiny_job
from tests.support.state import saved
from tests.unit.ravnest.driver.test_in_process_models import plain_losses

GPT = {"model": {"factory": "tied:gpt"}}
EVERYWHERE = {"model": {"factory": "tied:everywhere"}}
SGD = {"name": "sgd", "lr": 0.1}


def state_of(job, weights):
    """With all names of the model's own state."""
    aliases = captured_job(job).aliases
    return {**weights, **{other: weights[name] for name, others in aliases.items() for other in others}}


def test_first_and_last_stage_share_the_table():
    setups, _ = setups_of(tiny_job(**GPT), parts=(3,))
    ties = [setup.tied for setup in setups.values()]
    assert [tie.lent for tie in ties] == [("words.weight",), (), ()]
    assert [tie.passed_on for tie in ties] == [(), ("words.weight",), ()]
    assert [tie.borrowed for tie in ties] == [(), (), ("words.weight",)]
    assert [("words.weight" in needed(setup)) for setup in setups.values()] == [True, False, True]
    trained = [name for setup in setups.values() for segment in setup.segments for name in segment.parameters]
    assert trained.count("words.weight") == 1


def test_a_stage_that_holds_all_uses_has_nothing_to_send():
    setups, _ = setups_of(tiny_job(**GPT), parts=(1,))
    (setup,) = setups.values()
    assert (setup.tied.lent, setup.tied.borrowed, setup.program.borrowed) == ((), (), ())


@pytest.mark.parametrize("changes", [GPT, EVERYWHERE], ids=["gpt", "everywhere"])
@pytest.mark.parametrize("parts", [1, 2, 3, 5])
def test_with_a_flush_at_each_update_it_is_training_of_the_tied_model(changes, parts):
    job = tiny_job(**changes, max_staleness=0, optimizer=SGD, average_every=100_000)
    result = local_run(job, parts=(parts,)).run()
    expected, model = plain_losses(job, len(result.losses["c0"]))
    # Losses begin at 31, where float32 is exact to 2e-6; some processors end two steps 2.2e-6 apart.
    assert result.losses["c0"] == pytest.approx(expected, abs=4e-6)
    anchor = state_of(job, result.checkpoints[-1])
    assert max((anchor[name] - tensor).abs().max() for name, tensor in model.state_dict().items()) < 1e-6


@pytest.mark.parametrize(
    "changes",
    [{"activation_checkpointing": "always"}, {"split_backward": "always"}],
    ids=["recomputed", "split"],
)
def test_other_options_change_nothing_about_it(changes):
    job = tiny_job(**EVERYWHERE, **changes, max_staleness=0, optimizer=SGD, average_every=100_000)
    result = local_run(job, parts=(4,)).run()
    expected, _ = plain_losses(job, len(result.losses["c0"]))
    assert result.losses["c0"] == pytest.approx(expected, abs=2e-6)
    stale = local_run(job.model_copy(update={"max_staleness": 1}), parts=(4,)).run()
    assert all(max(found) <= 1 for found in stale.staleness.values())


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_so_is_a_synchronous_schedule_with_rounds_and_clipping(schedule):
    job = tiny_job(**EVERYWHERE, schedule=schedule, optimizer={**SGD, "clip_norm": 0.5})
    result = local_run(job, parts=(4,)).run()
    torch.manual_seed(0)
    expected = clipped_losses(job, len(result.losses["c0"]))
    assert result.losses["c0"] == pytest.approx(expected, abs=5e-6)


def clipped_losses(job, count):
    plain = torch.optim.SGD.step

    def step(self, *args):
        torch.nn.utils.clip_grad_norm_([p for group in self.param_groups for p in group["params"]], 0.5)
        return plain(self, *args)

    torch.optim.SGD.step = step
    try:
        return plain_losses(job, count)[0]
    finally:
        torch.optim.SGD.step = plain


@pytest.mark.parametrize("changes", [GPT, EVERYWHERE], ids=["gpt", "everywhere"])
@pytest.mark.parametrize("optimizer", [{"name": "adamw", "lr": 0.02}, {"name": "sgd", "lr": 0.1, "clip_norm": 1.0}])
def test_without_flushes_copies_are_the_owner_s_and_no_gradient_is_older_than_the_bound(changes, optimizer):
    job = tiny_job(**changes, optimizer=optimizer, stop={"samples": 480}, average_every=96)
    run = local_run(job, parts=(3, 2))
    result = run.run()
    assert all(max(found) <= 1 for found in result.staleness.values())
    for stage in run.stages.values():
        stage.turn(0.0)  # the last message, where no evaluation came behind it
        stage.compute.tied.adopt()
    for cluster, last in (("c0", 2), ("c1", 1)):
        own, borrowed = (
            dict(run.stages[f"{cluster}.s{index}"].compute.module.named_parameters()) for index in (0, last)
        )
        assert torch.equal(own["words.weight"], borrowed["words.weight"])
        assert torch.equal(own["words.weight"].detach(), result.checkpoints[-1]["words.weight"])
    make_model(job, JOB_FILE).load_state_dict(state_of(job, result.checkpoints[-1]), strict=True)


@pytest.mark.parametrize("seed", range(6))
def test_in_whatever_order_stages_take_their_turns_parts_are_in_time_and_the_bound_holds(seed):
    """Late parts, and gradients beyond the bound, end a run: see stage/tied.py."""
    draw = random.Random(seed)

    def order(stages):
        return draw.sample(stages, draw.randint(1, len(stages)))

    staleness = seed % 3
    job = tiny_job(**EVERYWHERE, optimizer=SGD, max_staleness=staleness, average_every=48, max_lag=2)
    result = local_run(job, parts=(4, 2), order=order).run()
    assert all(max(found) <= staleness for found in result.staleness.values())
    assert len(result.losses["c0"]) > 0 < len(result.losses["c1"])


def test_staleness_of_what_is_borrowed_is_counted():
    """The last stage's own gradients are never stale, those of the table that it borrows are."""
    job = tiny_job(**GPT, stop={"samples": 480}, optimizer=SGD)
    tied = local_run(job, parts=(3,)).run().staleness["c0.s2"]
    untied = local_run(tiny_job(stop={"samples": 480}, optimizer=SGD), parts=(3,)).run().staleness["c0.s2"]
    assert max(untied) == 0
    assert max(tied) == 1


def test_the_final_held_out_loss_is_that_of_the_saved_weights():
    job = tiny_job(**GPT, optimizer={"name": "adamw", "lr": 0.02}, metrics=["accuracy"])
    split = local_run(job, parts=(3,)).run()
    whole = local_run(
        job.model_copy(update={"stop": job.stop.model_copy(update={"samples": 12})}),
        parts=(1,),
        start=Start(split.checkpoints[-1], {"c0.s0": {}}, {"c0": 0}, 0),
    )
    compute = whole.stages["c0.s0"].compute
    compute.evaluate(9, 0, ())
    sums = compute.evaluation_sums(9)
    (evaluated,) = split.evaluations
    assert evaluated.loss[0] / evaluated.loss[1] == pytest.approx(sums.loss.mean, rel=1e-5)


def test_a_resumed_run_goes_on():
    job = tiny_job(**GPT, max_staleness=0, average_every=100_000, optimizer={**SGD, "momentum": 0.0})
    first = local_run(job, parts=(3,))
    anchor = first.run().checkpoints[-1]
    done = len(first.result.losses["c0"])
    optimizer = {name: saved(stage.rounds)[1] for name, stage in first.stages.items()}
    start = Start(anchor, optimizer, first.control.updates, first.control.samples)
    later_job = job.model_copy(update={"stop": job.stop.model_copy(update={"samples": 480})})
    later = local_run(later_job, parts=(3,), start=start).run().losses["c0"]
    expected, _ = plain_losses(job, done + len(later))
    assert later == pytest.approx(expected[done:], abs=1e-5)


def test_the_bytes_that_cross_are_the_plan_s():
    job = tiny_job(**GPT, average_every=100_000)
    run = local_run(job, parts=(3,))
    sent = []
    for stage in run.stages.values():
        plain = stage.endpoint.send

        def send(peer, lane, message, tensors=(), *, plain=plain):
            if isinstance(message, m.TiedWeights | m.TiedGradients):
                sent.append((type(message), sum(tensor.nbytes for tensor in tensors)))
            plain(peer, lane, message, tensors)

        stage.endpoint.send = send
    run.run()
    updates, table = run.control.updates["c0"], 4 * 11 * 16
    assert [size for kind, size in sent if kind is m.TiedGradients] == [table] * 2 * updates
    rounds_and_end = run.control.rounds_committed + 1
    assert len([kind for kind, _ in sent if kind is m.TiedWeights]) == 2 * (updates + rounds_and_end)
    units = captured_job(job).units
    assert {unit.tied_bytes for unit in units[:-1]} == {table}


@pytest.mark.parametrize("staleness", [0, 1])
def test_a_large_table_takes_what_the_plan_says_where_it_is_owned_and_borrowed(staleness):
    job = tiny_job(model={"factory": "tied:large"}, optimizer={"name": "adamw", "lr": 0.01}, max_staleness=staleness)
    job = job.model_copy(update={"stop": job.stop.model_copy(update={"samples": 96})})
    run = local_run(job, parts=(3,))
    run.run()
    _, plan = setups_of(job, parts=(3,))
    spans, table = SpanCosts(plan.costs, plan.workload), 20_000 * 16 * 4
    for index, stage in enumerate(plan.clusters[0].stages):
        planned = spans.stage_memory_bytes(*stage.units, (index, 3), plan.clusters[0].window)
        planned -= plan.workload.process_bytes
        measured = run.stages[f"c0.s{index}"].compute.peaks.bytes
        assert sum(measured.values()) <= 1.1 * planned, (index, measured, planned)
        if index == 0:
            assert sum(measured.values()) > 0.7 * planned
        if index == 2:
            assert measured["weights"] >= table
            assert measured["gradients"] >= table
            assert measured["optimizer"] < table


def test_a_last_stage_that_owns_nothing_works_for_the_owner():
    job = tiny_job(**EVERYWHERE, optimizer={"name": "adamw", "lr": 0.01, "clip_norm": 1.0}, average_every=48)
    last = len(captured_job(job).units) - 1
    run = local_run(job, cuts=[[last], [3, last]])
    result = run.run()
    assert run.stages["c0.s1"].setup.program.parameters == ()
    assert run.control.rounds_committed >= 3
    assert result.checkpoints[-1].keys() == make_weights(job, JOB_FILE).keys()


GPT2 = {"model_type": "gpt2", "vocab_size": 11, "n_positions": 8, "n_embd": 12, "n_layer": 2, "n_head": 2}
GPT2 |= {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}


def test_a_tied_hugging_face_model_trains():
    pytest.importorskip("transformers")
    job = tiny_job(
        model={"huggingface": GPT2},
        data={"factory": "several:sentences"},
        max_staleness=0,
        optimizer=SGD,
        average_every=100_000,
        stop={"samples": 120},
    )
    result = local_run(job, parts=(3,)).run()
    assert "lm_head.weight" not in make_weights(job, JOB_FILE)
    expected, model = plain_losses(job, len(result.losses["c0"]))
    assert result.losses["c0"] == pytest.approx(expected, abs=1e-5)
    model.load_state_dict(state_of(job, result.checkpoints[-1]), strict=True)
