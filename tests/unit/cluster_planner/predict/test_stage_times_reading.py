"""The time of reading data, which the first and the last stage of each cluster spend."""

from collections.abc import Callable

import numpy as np
import pytest

from cluster_planner.advice.plan_warnings import starved_by_data
from cluster_planner.inputs.fleet import Fleet
from cluster_planner.inputs.model_costs import ModelCosts, Workload
from cluster_planner.inputs.spans import SpanCosts
from cluster_planner.plan import Stage
from cluster_planner.planner import make_plan
from cluster_planner.predict.stage_times import loads_of, work_times

STAGES = (Stage("fast0", (0, 3)), Stage("fast1", (3, 6)), Stage("fast2", (6, 8)))


@pytest.fixture
def spans_with(
    make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]
) -> Callable[..., SpanCosts]:
    return lambda **reading: SpanCosts(make_model(8), make_workload(**reading))


def test_only_the_first_and_the_last_stage_read(home: Fleet, spans_with: Callable[..., SpanCosts]) -> None:
    before, after = (loads_of(home, spans_with(reading_s=s), STAGES) for s in (0.0, 0.5))
    assert [b.compute_s - a.compute_s for a, b in zip(before, after, strict=True)] == pytest.approx([0.5, 0.0, 0.5])
    assert [load.reading_s for load in after] == pytest.approx([0.5, 0.0, 0.5])
    alone = Stage("fast0", (0, 8))
    assert loads_of(home, spans_with(reading_s=0.5), [alone])[0].reading_s == pytest.approx(0.5)  # once, not twice


def test_readers_read_while_the_stage_computes(home: Fleet, spans_with: Callable[..., SpanCosts]) -> None:
    idle = loads_of(home, spans_with(), STAGES)[0].compute_s
    for readers, expected in ((1, 10 * idle), (4, 2.5 * idle), (20, idle)):
        load = loads_of(home, spans_with(reading_s=10 * idle, readers=readers), STAGES)[0]
        assert load.compute_s == pytest.approx(expected)
        assert load.reading_s == pytest.approx(expected - idle)


def test_a_forward_takes_what_the_load_says(home: Fleet, spans_with: Callable[..., SpanCosts]) -> None:
    for reading in ({}, {"reading_s": 0.3}, {"reading_s": 0.3, "readers": 2}):
        spans = spans_with(**reading)
        for stage, load in zip(STAGES, loads_of(home, spans, STAGES), strict=True):
            times = work_times(home, spans, stage)
            each = times.forward_s + times.backward_s + times.update_s / spans.workload.update_every
            assert each == pytest.approx(load.compute_s)


def test_tables_of_the_search_say_the_same(spans_with: Callable[..., SpanCosts]) -> None:
    for reading in ({}, {"reading_s": 0.3}, {"reading_s": 0.3, "readers": 2, "reader_bytes": 5 * 10**7}):
        spans = spans_with(**reading)
        seconds = spans.table_with_reading(spans.flops_table() / 1e10)
        memory = spans.memory_table(2)
        for i in range(8):
            for j in range(i + 1, 9):
                assert seconds[i, j] == pytest.approx(spans.with_reading(i, j, spans.flops(i, j) / 1e10))
                assert memory[i, j] == pytest.approx(spans.memory_bytes(i, j, 2))
        assert np.isinf(seconds[4, 4])


def test_a_plan_knows_what_its_data_cost_and_how_many_readers_would_do(
    home: Fleet, make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]
) -> None:
    """10 ms a sample, in micro-batches of 4: no cluster makes more than 100 samples/s by itself."""
    given = {"job": {}, "job_file": "job.yaml", "min_stages": 2}
    costs = make_model(8, flops=1e6, parameter_bytes=10**4)
    free = make_plan(home, costs, make_workload(), **given)
    slow = make_plan(home, costs, make_workload(reading_s=0.04), **given)
    assert starved_by_data(free) is None
    assert all(cluster.samples_per_s <= 100 for cluster in slow.predicted.clusters)
    assert slow.predicted.best_possible >= slow.predicted.objective
    assert "the reading of data in " in slow.predicted.bottleneck
    starved = starved_by_data(slow)
    assert starved is not None
    assert starved.samples_per_s > 5 * slow.predicted.samples_per_s
