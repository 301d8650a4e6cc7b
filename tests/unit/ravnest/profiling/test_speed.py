from collections.abc import Sequence

import pytest

from cluster_planner import ModelCosts, SpanCosts, Unit
from ravnest.errors import InvalidInput
from ravnest.planning.workload import workload
from ravnest.profiling.memory_traffic import flops_per_s
from ravnest.profiling.speed import measure_speed, require_room, work_of
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


def test_a_unit_beyond_the_memory_is_named() -> None:
    model = costs([10**6, 10**8])
    require_room(model, model.memory_bytes(1, 2, 1))
    with pytest.raises(InvalidInput, match="unit 1 of the model needs"):
        require_room(model, model.memory_bytes(1, 2, 1) - 1)


def test_the_speed_of_the_jobs_units_is_what_the_plan_divides_by() -> None:
    job = tiny_job()
    work = work_of(job, JOB_FILE, 10**12)
    captured = captured_job(job)
    planned = SpanCosts(captured.costs, workload(job)).flops(0, len(captured.units))
    assert sum(kind.count * kind.flops for kind in work.kinds) == pytest.approx(planned)
    speed = measure_speed(work, device="cpu", threads=1, seconds=0.01, search_dirs=[JOB_FILE.parent])
    assert speed.flops_per_s.value * speed.micro_batch_s == pytest.approx(planned)
    assert speed.repeats >= 4
    for traffic in (0.0, 12.5):
        weighted = SpanCosts(captured.costs.with_traffic(traffic), workload(job)).flops(0, len(captured.units))
        told_s = weighted / flops_per_s(work.kinds, speed.kind_s, traffic)
        assert told_s == pytest.approx(speed.micro_batch_s, rel=1e-6)


def test_units_that_are_alike_are_measured_once() -> None:
    deep = tiny_job(model={"factory": "tiny:gpt", "args": {"layers": 6}})
    works = [work_of(job, JOB_FILE, 10**12) for job in (tiny_job(), deep)]
    few, many = (len(captured_job(job).units) for job in (tiny_job(), deep))
    assert many > few
    assert [sum(kind.count for kind in work.kinds) for work in works] == [few, many]
    assert len(works[1].programs) == len(works[1].kinds) < many / 2
    speed = measure_speed(works[1], device="cpu", threads=1, seconds=0.01, search_dirs=[JOB_FILE.parent])
    assert len(speed.kind_s) == len(works[1].kinds)
    assert speed.micro_batch_s > sum(speed.kind_s)
