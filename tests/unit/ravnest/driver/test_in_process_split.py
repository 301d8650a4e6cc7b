"""A run whose stages split their backwards ends with the weights of one that does not, bit for bit: in synchronous
runs, where no weights depend on the order of events.
"""

import pytest
import torch

from ravnest.driver.in_process import LocalRun
from ravnest.stage import messages as m
from ravnest.stage.split_backward import NotSplittable
from tests.support.local import local_run, tiny_job


def trained(**changes) -> tuple[LocalRun, dict[str, torch.Tensor]]:
    run = local_run(tiny_job(**changes), parts=(3,))
    run.run()
    weights = {}
    for stage in run.stages.values():
        weights |= {name: p.detach().clone() for name, p in stage.compute.module.named_parameters()}
    return run, weights


CASES = {
    "greedy": {"max_staleness": 0},
    "1f1b": {"schedule": "1f1b"},
    "gpipe": {"schedule": "gpipe"},
    "clipped": {"max_staleness": 0, "optimizer": {"name": "adamw", "lr": 1e-2, "clip_norm": 0.1}},
}


@pytest.mark.parametrize("case", CASES)
def test_split_and_whole_backwards_train_the_same_weights(case):
    run, split = trained(split_backward="always", **CASES[case])
    _, whole = trained(split_backward="never", **CASES[case])
    assert [stage.machine.splits for stage in run.stages.values()] == [False, True, True]
    assert {name: torch.equal(split[name], whole[name]) for name in whole} == dict.fromkeys(whole, True)


def heard_of(run):
    """A list to which everything is added that the stages tell the driver: (stage, message)."""
    told, handle = [], run.control.handle

    def record(sender, message):
        told.append((sender, message))
        return handle(sender, message)

    run.control.handle = record
    return told


def test_every_stage_but_the_first_splits_and_says_so():
    run = local_run(tiny_job(split_backward="always"), parts=(3,))
    told = heard_of(run)
    run.run()
    splits = [(name, message.splits) for name, message in told if isinstance(message, m.BackwardSplit)]
    assert sorted(splits) == [("c0.s1", True), ("c0.s2", True)]
    assert run.stages["c0.s0"].compute.splitter is None
    for name in ("c0.s1", "c0.s2"):
        assert run.stages[name].machine.splits
        assert not run.stages[name].compute.unfinished


def test_a_stage_whose_backward_cannot_be_split_keeps_to_whole_ones(monkeypatch):
    def refuse(*_: object) -> None:
        raise NotSplittable("no frontier for a test")

    monkeypatch.setattr("ravnest.stage.split_backward.frontier_of", refuse)
    run = local_run(tiny_job(split_backward="always"), parts=(2,))
    stage, told = run.stages["c0.s1"], heard_of(run)
    run.run()
    assert [message.refused for _, message in told if isinstance(message, m.BackwardSplit)] == [
        "no frontier for a test"
    ]
    assert not stage.machine.splits
