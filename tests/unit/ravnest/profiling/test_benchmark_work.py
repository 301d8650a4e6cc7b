from collections.abc import Sequence

import pytest

from cluster_planner import ModelCosts, SpanCosts, Unit
from ravnest.errors import InvalidInput
from ravnest.planning.workload import workload
from ravnest.profiling.benchmark_work import MEMORY_SHARE, TOGETHER_BYTES, require_room, together_bytes, work_of
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
    require_room(model, model.memory_bytes(1, 2, 1), "a machine")
    with pytest.raises(InvalidInput, match=r"unit 1 of the model needs .* and a machine spares"):
        require_room(model, model.memory_bytes(1, 2, 1) - 1, "a machine")


def test_units_have_to_fit_what_measures_them() -> None:
    job = tiny_job()
    with pytest.raises(InvalidInput, match="the smallest machine spares"):
        work_of(job, JOB_FILE, 10, [10**12])
    with pytest.raises(InvalidInput, match="the card with the most free memory spares"):
        work_of(job, JOB_FILE, None, [10, 20])
    assert work_of(job, JOB_FILE, None, [10, 10**12]).together.counts == work_of(job, JOB_FILE, 10**12).counts


def test_the_first_units_that_are_run_together_fit_the_memory() -> None:
    job = tiny_job()
    count = len(captured_job(job).units)
    roomy = work_of(job, JOB_FILE, 10**12)
    assert roomy.together.counts == roomy.counts
    assert sum(roomy.counts) == count
    costs = SpanCosts(captured_job(job).costs, workload(job))
    few = max(2, count // 2)
    largest = max(costs.memory_bytes(unit, unit + 1, 1) for unit in range(count))
    room = max(costs.memory_bytes(0, few, 1), largest)
    tight = work_of(job, JOB_FILE, 2 * room)
    fitting = sum(tight.together.counts)
    assert few <= fitting < count
    assert costs.memory_bytes(0, fitting, 1) <= room < costs.memory_bytes(0, fitting + 1, 1)


def test_a_card_that_is_full_does_not_say_how_many_units_are_run_together() -> None:
    model = costs([10**6, 10**8])
    largest = model.memory_bytes(1, 2, 1)
    assert together_bytes(model, [3 * largest, 5 * largest, largest // 10]) == round(MEMORY_SHARE * 3 * largest)
    assert together_bytes(model, [10**12, 10**11]) == TOGETHER_BYTES
