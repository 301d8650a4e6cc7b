from collections.abc import Sequence

import pytest

from cluster_planner import ModelCosts, SpanCosts, Unit
from ravnest.errors import InvalidInput
from ravnest.planning.workload import workload
from ravnest.profiling.speed import measure_speed, spans_within, work_of
from tests.support.local import JOB_FILE, captured_job, tiny_job


def costs(parameters: Sequence[int]) -> SpanCosts:
    units = tuple(
        Unit(
            name=f"u{i}",
            flops=1e6,
            parameter_bytes=size,
            saved_bytes=0,
            boundary_bytes=100,
            boundary_gradient_bytes=100,
        )
        for i, size in enumerate(parameters)
    )
    return SpanCosts(ModelCosts(units, "f"), workload(tiny_job()))


def test_spans_cover_the_model_and_fit_the_memory() -> None:
    model = costs([10**6, 4 * 10**6, 10**6, 10**6, 6 * 10**6])
    limit = model.memory_bytes(4, 5, 1)
    spans = spans_within(model, limit)
    assert [start for start, _ in spans] == [0, *(end for _, end in spans)][:-1]
    assert spans[-1][1] == 5
    assert len(spans) > 1
    assert all(model.memory_bytes(*span, 1) <= limit for span in spans)


def test_a_unit_beyond_the_memory_is_named() -> None:
    with pytest.raises(InvalidInput, match="unit 1 of the model needs"):
        spans_within(costs([10**6, 10**10]), 10**9)


def test_the_speed_of_the_jobs_units_is_what_the_plan_divides_by() -> None:
    job = tiny_job()
    work = work_of(job, JOB_FILE, 10**12)
    captured = captured_job(job)
    planned = SpanCosts(captured.costs, workload(job))
    assert work.flops == planned.flops(0, len(captured.units))
    speed = measure_speed(work, device="cpu", threads=1, seconds=0.01, search_dirs=[JOB_FILE.parent])
    assert speed.flops_per_s.value * speed.micro_batch_s == pytest.approx(work.flops)
    assert speed.repeats >= 4


def test_a_model_in_several_spans_is_run_through_all_of_them() -> None:
    job = tiny_job()
    captured = captured_job(job)
    planned = SpanCosts(captured.costs, workload(job))
    most = max(planned.memory_bytes(i, i + 1, 1) for i in range(planned.count))
    work = work_of(job, JOB_FILE, 2 * most)
    if len(work.programs) > 1:
        assert work.flops == pytest.approx(planned.flops(0, planned.count))
    speed = measure_speed(work, device="cpu", threads=1, seconds=0.01, search_dirs=[JOB_FILE.parent])
    assert speed.micro_batch_s > 0
