"""Invariant 6: the tensors of a stage stay within 10 % of what the plan says. The small real run is in
tests/integration/test_cli_run.py."""

import pytest
import torch
from torch import nn

from cluster_planner import SpanCosts
from ravnest.errors import RunFailed
from ravnest.stage.memory import PARTS, ActivationBytes, Peaks
from ravnest.stage.setup import MemoryCap
from tests.support.local import local_run, setups_of, tiny_job


def test_a_peak_only_rises():
    peaks = Peaks()
    peaks.saw("weights", 5)
    assert peaks.grown
    peaks.grown = False
    peaks.saw("weights", 4)
    peaks.saw("weights", 5)
    assert (peaks.bytes["weights"], peaks.grown) == (5, False)


def test_activations_are_measured_once_for_each_shape_and_counted_while_they_are_alive():
    layer = nn.Linear(8, 4)
    peaks = Peaks()
    kept = ActivationBytes(layer.parameters, peaks)
    for number, rows in enumerate((2, 2, 3)):
        x = torch.ones(rows, 8)
        with kept.forward(number, [x]):
            out = torch.sigmoid(layer(x))
        out.sum().backward()
    # Input and sigmoid's result, of 2, 2 and 3 rows; the weight is not counted.
    assert peaks.bytes["activations"] == 4 * (8 + 4) * (2 + 2 + 3)
    kept.backward(0)
    kept.backward(1)
    kept.backward(2)
    with kept.forward(3, [torch.ones(3, 8)]):
        pass
    assert peaks.bytes["activations"] == 4 * (8 + 4) * 7


def test_measuring_changes_no_gradient_and_frees_what_it_saw():
    torch.manual_seed(0)
    layer = nn.Linear(8, 8)
    x = torch.randn(4, 8)
    layer(x).tanh().square().sum().backward()
    expected = layer.weight.grad.clone()
    layer.weight.grad = None
    with ActivationBytes(layer.parameters, Peaks()).forward(0, [x]):
        out = layer(x).tanh()
    out.square().sum().backward()
    assert torch.equal(layer.weight.grad, expected)


WIDE = {"factory": "tiny:gpt", "args": {"width": 128, "layers": 3}}
RUNS = {
    "a pipeline": ({"model": WIDE}, (3,)),
    "one stage": ({"model": WIDE}, (1,)),
    "two clusters cut differently": ({"model": WIDE}, (2, 1)),
    "synchronous": ({"model": WIDE, "max_staleness": 0}, (2,)),
    "bfloat16": ({"model": WIDE, "precision": "bfloat16"}, (3,)),
    "float16": ({"model": WIDE, "precision": "float16"}, (2,)),
    "split backwards": ({"model": WIDE, "split_backward": "always"}, (3,)),
    "no split backwards": ({"model": WIDE, "split_backward": "never"}, (3,)),
    "synchronous with split backwards": ({"model": WIDE, "max_staleness": 0, "split_backward": "always"}, (3,)),
    "weights of bfloat16": (
        {"model": {"factory": "narrow:Narrow", "args": {"width": 128}}, "data": {"factory": "narrow:data"}},
        (3, 1),
    ),
    "factored moments": ({"model": WIDE, "optimizer": {"name": "adafactor", "lr": 1e-2}}, (3,)),
    "SGD with momentum": ({"model": WIDE, "optimizer": {"name": "sgd", "lr": 1e-2, "momentum": 0.9}}, (2,)),
}


@pytest.mark.parametrize("case", RUNS)
def test_tensors_stay_within_a_tenth_of_the_plan(case):
    changes, parts = RUNS[case]
    job = tiny_job(stop={"samples": 120}, **changes)
    run = local_run(job, parts=parts)
    run.run()
    _, plan = setups_of(job, parts=parts)
    spans = SpanCosts(plan.costs, plan.workload)
    for cluster in plan.clusters:
        stages = len(cluster.stages)
        for index, stage in enumerate(cluster.stages):
            whole = spans.stage_memory_bytes(*stage.units, (index, stages), cluster.window)
            planned = whole - plan.workload.process_bytes
            if spans.room_to_split(*stage.units, (index, stages), cluster.window, 10**12):
                planned += spans.split_bytes(*stage.units)
            measured = run.stages[f"{cluster.name}.s{index}"].compute.peaks.bytes
            assert set(measured) == set(PARTS)
            assert min(measured[part] for part in PARTS if part != "arrived") > 0
            assert sum(measured.values()) <= 1.1 * planned, (index, measured, planned)
            # The plan's window allows for latency; without any, fewer micro-batches are in flight. The rest is met.
            held = sum(measured[part] for part in ("weights", "gradients", "optimizer", "averaging"))
            assert held == pytest.approx(spans.weight_bytes(*stage.units), rel=0.10), (index, measured)


def test_a_stage_that_takes_more_than_its_node_has_is_named_with_both_figures():
    peaks = Peaks()
    peaks.saw("weights", 700_000_000)
    peaks.saw("activations", 100_000_000)
    peaks.require_within(MemoryCap("old-laptop", 1_000_000_000, 200_000_000), "c0.s1")
    peaks.saw("activations", 300_000_000)
    with pytest.raises(
        RunFailed, match=r"^c0\.s1 takes more memory than its node 'old-laptop' has: 1\.2 GB .* of 1 GB$"
    ):
        peaks.require_within(MemoryCap("old-laptop", 1_000_000_000, 200_000_000), "c0.s1")
