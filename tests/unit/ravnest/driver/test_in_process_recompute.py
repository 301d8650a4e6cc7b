"""A run whose stages run their forwards twice ends as one that keeps its activations: bit for bit, dropout and
batch-norm included."""

import pytest
import torch

from cluster_planner import SpanCosts
from ravnest.driver.in_process import LocalRun
from tests.support.local import local_run, setups_of, tiny_job

DROPOUT = {"model": {"factory": "tiny:gpt", "args": {"dropout": 0.2}}}
CNN = {
    "model": {"factory": "tiny:cnn"},
    "data": {"factory": "tiny:images"},
    "optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0.9},
}
CASES = {
    "dropout": DROPOUT,
    "batch-norm": CNN,
    "a counter that is not saved": {"model": {"factory": "tiny:counting"}},
    "synchronous": {**DROPOUT, "max_staleness": 0},
    "gpipe with batch-norm": {**CNN, "schedule": "gpipe"},
    "clipped": {**DROPOUT, "optimizer": {"name": "adamw", "lr": 1e-2, "clip_norm": 0.1}},
}


def trained(parts: int, way=None, **changes) -> tuple[LocalRun, dict[str, torch.Tensor]]:
    """`way`: whether stages that recompute do so unit by unit, whatever takes less memory."""
    with pytest.MonkeyPatch.context() as patch:
        if way is not None:
            patch.setattr(SpanCosts, "recomputes_unit_by_unit", lambda *_: way)
        run = local_run(tiny_job(split_backward="never", **changes), parts=(parts,))
    run.run()
    state = {}
    for stage in run.stages.values():
        state |= {name: value.detach().clone() for name, value in stage.compute.module.state_dict().items()}
    return run, state


@pytest.mark.parametrize("unit_by_unit", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_running_forwards_twice_changes_nothing(case, unit_by_unit):
    _, kept = trained(3, **CASES[case])
    run, again = trained(3, unit_by_unit, activation_checkpointing="always", **CASES[case])
    assert all(stage.setup.bounds.recomputes for stage in run.stages.values())
    assert all(bool(stage.setup.units) is unit_by_unit for stage in run.stages.values())
    assert {name: torch.equal(again[name], kept[name]) for name in kept} == dict.fromkeys(kept, True)


@pytest.mark.parametrize("unit_by_unit", [False, True])
def test_batch_norm_counts_each_micro_batch_once(unit_by_unit):
    run, state = trained(2, unit_by_unit, activation_checkpointing="always", **CNN)
    samples = run.stages["c0.s0"].machine.version * 3
    assert [int(state[f"bn{i}.num_batches_tracked"]) for i in (1, 2)] == [samples, samples]


WIDE = {"model": {"factory": "tiny:gpt", "args": {"width": 128, "layers": 3}}}


@pytest.mark.parametrize("changes", [{}, {"schedule": "gpipe"}, {"max_staleness": 0}])
def test_memory_is_that_of_the_plan_and_less_than_without(changes):
    job = tiny_job(activation_checkpointing="always", update_every=6, **WIDE, **changes)
    run = local_run(job, parts=(3,))
    run.run()
    _, plan = setups_of(job, parts=(3,))
    spans, (cluster,) = SpanCosts(plan.costs, plan.workload), plan.clusters
    for index, stage in enumerate(cluster.stages):
        place = (index, 3)
        planned = spans.stage_memory_bytes(*stage.units, place, cluster.window, recomputes=True)
        without = spans.stage_memory_bytes(*stage.units, place, cluster.window)
        measured = run.stages[f"c0.s{index}"].compute.peaks.bytes
        assert sum(measured.values()) <= 1.1 * (planned - plan.workload.process_bytes), (index, measured)
        if index < 2 or "schedule" in changes:
            assert planned < without
        one = spans.split_bytes(*stage.units) / 2
        assert bool(run.stages[f"c0.s{index}"].setup.units) is spans.recomputes_unit_by_unit(
            *stage.units, place, cluster.window
        )
        inputs = plan.workload.held(3, index) if plan.workload.is_synchronous else cluster.window
        assert measured["activations"] <= 1.1 * (one + inputs * spans.forward_bytes[stage.units[0]]) + 4096


def test_stages_recompute_in_the_way_that_takes_less_memory():
    """The first stage keeps the inputs of its units for four micro-batches, and the last for one."""
    job = {"activation_checkpointing": "always", "update_every": 2, **WIDE}
    (once, _), (by_unit, _) = trained(2, False, **job), trained(2, True, **job)
    _, plan = setups_of(tiny_job(split_backward="never", **job), parts=(2,))
    spans, (cluster,) = SpanCosts(plan.costs, plan.workload), plan.clusters
    for index, stage in enumerate(cluster.stages):
        kept, less = (run.stages[f"c0.s{index}"].compute.peaks.bytes["activations"] for run in (once, by_unit))
        assert (less < 0.8 * kept) is (index == 1), (less, kept)
        assert spans.recomputes_unit_by_unit(*stage.units, (index, 2), cluster.window) is (index == 1)
