import pytest
import torch

from experiments.harness.report import ROOT
from experiments.pipeline.tasks import Characters
from experiments.wire.rereading import RereadingGPT
from experiments.wire.tried_bottlenecks import BLOCKS, CONTEXT, FEATURES, WAYS, Narrow, model_of

TASK = Characters(ROOT / "README.md", BLOCKS, FEATURES, CONTEXT, 4)


@pytest.mark.parametrize(
    ("way", "ratio"), [("float32", 1), ("a quarter, alike", 4), ("none, rereads", 0.998), ("ids alone", 512)]
)
def test_ratios_of_bytes(way, ratio):
    assert WAYS[way].ratio == pytest.approx(ratio, rel=1e-3)


def test_one_way_takes_at_least_32_times_fewer_bytes_with_its_ids():
    assert WAYS["14 of 64, int4, rereads"].ratio == pytest.approx(2 * 32 * 64 / (2 * 14 * 4.25 + 8), rel=1e-3)
    assert WAYS["14 of 64, int4, rereads"].ratio > 32


def test_all_ways_begin_with_the_same_weights_and_bottlenecks_that_are_alike_on_one_subspace():
    plain = TASK.model(0)
    before = {name: value.clone() for name, value in plain.state_dict().items()}
    for alike in (False, True):
        model = model_of(TASK.model(0), Narrow(8, alike=alike, rereads=True), 0)
        assert isinstance(model, RereadingGPT)
        assert all(torch.equal(model.state_dict()[name], value) for name, value in before.items())
        downs = [model.get_parameter(f"blocks.{block}.bottleneck.down.weight") for block in range(3)]
        assert downs[0].shape == (8, FEATURES)
        assert all(torch.equal(downs[0], down) is alike for down in downs[1:])
    assert model_of(plain, Narrow(), 0) is plain
