"""Estimates against the pipelines that are planned of the same groups, and against each other."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from cluster_planner import Fleet, ModelCosts, Node, RegionLink, Workload
from cluster_planner.inputs.spans import SpanCosts
from cluster_planner.pipeline.best_pipeline import plan_pipeline
from cluster_planner.search.estimates import EXACT, NOTHING, Estimator, Group, merged

CLOSE = 0.03
"""How far an estimate of a group of up to EXACT nodes is from its pipeline's value, on the same cuts; and how much more
one of a larger group promises, which has to use all its nodes."""


def fleet_of(make_node: Callable[..., Node], count: int, seed: int = 0, hosted: int = 0) -> Fleet:
    """Unequal nodes in two regions; the first `hosted` of them share a host."""
    draw = np.random.default_rng(seed)
    rates = [2e6, 5e6, 2e7]
    nodes = [
        make_node(
            f"n{i}",
            flops_per_s=float(draw.uniform(5e9, 5e10)),
            memory_bytes=int(draw.uniform(1.4e8, 4e8)),
            up_bytes_per_s=(up := 5e6 if i < hosted else rates[draw.integers(3)]),
            down_bytes_per_s=2 * up,
            region="xy"[i % 2],
            host="box" if i < hosted else None,
        )
        for i in range(count)
    ]
    links = (RegionLink("x", "y", 0.03, 1e7), RegionLink("x", "x", 0.002, 5e7), RegionLink("y", "y", 0.004, 5e7))
    return Fleet(tuple(nodes), (), links)


@pytest.fixture
def spans(make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]) -> SpanCosts:
    return SpanCosts(make_model(10), make_workload(update_every=8))


def groups_of(count: int, sizes: range, seed: int = 0, each: int = 12) -> list[Group]:
    draw = np.random.default_rng(seed)
    return [tuple(sorted(draw.choice(count, k, replace=False).tolist())) for k in sizes for _ in range(each)]


@pytest.mark.parametrize("averaging_per_s", [0.0, 0.05])
def test_small_groups_are_worth_about_what_their_pipelines_are(
    make_node: Callable[..., Node], spans: SpanCosts, averaging_per_s: float
) -> None:
    fleet = fleet_of(make_node, 8)
    groups = groups_of(8, range(2, EXACT + 1))
    estimates = Estimator(fleet, spans, 2, averaging_per_s).of(groups)
    planned = [plan_pipeline(fleet, spans, [fleet.names[i] for i in group], averaging_per_s, 2) for group in groups]
    assert sum(one is not NOTHING for one in estimates) > len(groups) / 2
    for one, pipeline in zip(estimates, planned, strict=True):
        assert (one is NOTHING) == (pipeline is None)
        if pipeline is not None:
            assert one.value == pytest.approx(pipeline.value, rel=CLOSE)


def test_larger_groups_promise_no_more_than_their_pipelines_keep(
    make_node: Callable[..., Node], spans: SpanCosts
) -> None:
    fleet = fleet_of(make_node, 14)
    groups = groups_of(14, range(EXACT + 1, 10), each=4)
    for group, one in zip(groups, Estimator(fleet, spans, 2, 0.0).of(groups), strict=True):
        pipeline = plan_pipeline(fleet, spans, [fleet.names[i] for i in group], 0.0, 2)
        assert one.used in ((), group)
        assert one.value <= (0.0 if pipeline is None else pipeline.value * (1 + CLOSE))


@pytest.mark.parametrize("hosted", [0, 4])
def test_an_estimate_is_the_same_alone_and_with_others(
    make_node: Callable[..., Node], spans: SpanCosts, hosted: int
) -> None:
    fleet = fleet_of(make_node, 16, hosted=hosted)
    groups = groups_of(16, range(1, 16), each=5)
    together, alone = (Estimator(fleet, spans, 2, 0.01) for _ in range(2))
    assert together.of(groups) == [alone.of([group])[0] for group in groups]
    assert together.asked == alone.asked <= len(set(groups))


def test_a_group_of_more_nodes_than_stages_is_estimated_by_its_fastest(
    make_node: Callable[..., Node], spans: SpanCosts
) -> None:
    fleet, most = fleet_of(make_node, 16), len(spans.positions) - 1
    fastest = sorted(range(16), key=lambda i: -fleet.nodes[i].flops_per_s)[:most]
    everyone, few = Estimator(fleet, spans, 2, 0.0).of([tuple(range(16)), tuple(sorted(fastest))])
    assert most < 16
    assert everyone == few
    assert set(everyone.used) <= set(fastest)
    assert everyone.value > 0


def test_faster_nodes_make_no_less(make_node: Callable[..., Node], spans: SpanCosts) -> None:
    fleet = fleet_of(make_node, 14)
    fast = replace(fleet, nodes=tuple(replace(node, flops_per_s=2 * node.flops_per_s) for node in fleet.nodes))
    groups = groups_of(14, range(2, 13))
    before, after = (Estimator(one, spans, 2, 0.0).of(groups) for one in (fleet, fast))
    assert all(then.samples_per_s >= now.samples_per_s for now, then in zip(before, after, strict=True))
    assert sum(then.samples_per_s > now.samples_per_s for now, then in zip(before, after, strict=True)) > 10


def test_all_twice_as_fast_is_worth_twice_as_much(make_node: Callable[..., Node], spans: SpanCosts) -> None:
    fleet = fleet_of(make_node, 14)
    nodes = tuple(
        replace(
            node,
            flops_per_s=2 * node.flops_per_s,
            up_bytes_per_s=2 * node.up_bytes_per_s,
            down_bytes_per_s=2 * node.down_bytes_per_s,
        )
        for node in fleet.nodes
    )
    links = tuple(RegionLink(r.a, r.b, r.latency_s / 2, 2 * r.bytes_per_s) for r in fleet.regions)
    groups = groups_of(14, range(2, 13))
    before = Estimator(fleet, spans, 2, 0.01).of(groups)
    after = Estimator(Fleet(nodes, (), links), spans, 2, 0.02).of(groups)
    assert [one.used for one in after] == [one.used for one in before]
    assert [one.value for one in after] == pytest.approx([2 * one.value for one in before])


def test_who_cannot_hold_the_model_is_worth_nothing(make_node: Callable[..., Node], spans: SpanCosts) -> None:
    few = spans.memory_bytes(0, 3, 1)  # of ten units
    fleet = Fleet(tuple(make_node(f"n{i}", memory_bytes=few) for i in range(6)))
    found = Estimator(fleet, spans, 2, 0.0).of([(0,), (0, 1, 2), (0, 1, 2, 3, 4), tuple(range(6))])
    assert [one is NOTHING for one in found] == [True, True, False, False]


def test_groups_are_put_together_in_order() -> None:
    assert merged((3, 1), (2,), ()) == (1, 2, 3)
